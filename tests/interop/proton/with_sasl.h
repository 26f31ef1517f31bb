/* Included before Proton's examples in C. They pass no transport, and then Proton leaves out SASL, which a node requires
 * as RabbitMQ does. */

#include <proton/proactor.h>
#include <proton/sasl.h>
#include <proton/transport.h>

static void connect_with_sasl(
    pn_proactor_t *proactor, pn_connection_t *connection, pn_transport_t *transport, const char *address) {
  if (transport == NULL) transport = pn_transport();
  pn_sasl(transport);
  pn_proactor_connect2(proactor, connection, transport, address);
}

#define pn_proactor_connect2 connect_with_sasl
