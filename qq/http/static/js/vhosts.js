/** Which virtual hosts there are, and which one is looked at. */
import { getIfThere } from "./api.js";
import { usePlace } from "./router.js";
import { Store, useStore } from "./store.js";

const SHOWN_MAX = 500;

/** @type {Store<string[]>} */
const names = new Store(/** @type {string[]} */ ([]));

export async function readVhosts() {
  const told = await getIfThere(`vhosts?columns=name&page=1&page_size=${SHOWN_MAX}&disable_stats=true`);
  names.set((told?.items ?? []).map((/** @type {any} */ each) => each.name));
}

export const useVhosts = () => useStore(names);

/** The virtual host that is looked at; "" for all. */
export const useVhost = () => usePlace().values.vhost ?? "";
