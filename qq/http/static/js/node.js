/**
 * Where the node is.
 *
 * A proxy may have put it below a path of its own. A page opened as http://user:password@host may not fetch relative to
 * its own address, so that is put together without them.
 */
export const NODE = location.origin + location.pathname.replace(/[^/]*$/, "");
