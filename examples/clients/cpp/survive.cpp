// Publishes 2,000 numbered messages and consumes them with Qpid Proton over AMQP 1.0, on nodes that may be killed.
//
//   g++ -std=c++17 -o survive survive.cpp -lqpid-proton-cpp
//   ./survive [HOST:PORT...]      each node; by default the nodes of `qq up`

#include <algorithm>
#include <iostream>
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/duration.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/reconnect_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

const std::string ADDRESS = "/queues/survive-cpp";
const int MESSAGES = 2000;

class Survive : public proton::messaging_handler {
    std::vector<std::string> nodes;
    proton::sender sender;
    int number = 1; // the message that is published next, or whose outcome is awaited
    bool under_way = false;
    std::set<std::string> seen;

  public:
    explicit Survive(std::vector<std::string> addresses) : nodes(std::move(addresses)) {
        // So that clients spread over the nodes.
        std::shuffle(nodes.begin(), nodes.end(), std::mt19937(std::random_device()()));
    }

    void on_container_start(proton::container &container) override {
        proton::connection_options options;
        options.user("guest").password("guest").sasl_allow_insecure_mechs(true); // over TLS it is not needed
        options.idle_timeout(10 * proton::duration::SECOND); // notice a host that is gone
        // The client connects again by itself: to the first address, then to each of the others.
        options.reconnect(proton::reconnect_options().delay(100 * proton::duration::MILLISECOND)
                              .max_delay(proton::duration::SECOND));
        options.failover_urls(std::vector<std::string>(nodes.begin() + 1, nodes.end()));
        container.connect(nodes.front(), options);
    }

    // Also after each reconnect, with links that were lost.
    void on_connection_open(proton::connection &connection) override {
        under_way = false; // whether the last message is stored is unknown: it is published again, and may come twice
        connection.open_receiver(ADDRESS, proton::receiver_options().credit_window(100));
        sender = connection.open_sender(ADDRESS);
    }

    void on_sendable(proton::sender &) override { publish(); }

    void publish() {
        if (under_way || number > MESSAGES || sender.credit() == 0) return;
        proton::message message(std::to_string(number));
        message.durable(true);
        sender.send(message);
        under_way = true;
    }

    void on_tracker_accept(proton::tracker &) override {
        if (number++ == MESSAGES) std::cout << MESSAGES << " messages are confirmed" << std::endl;
        under_way = false;
        publish();
        close_when_done();
    }

    // A full queue has refused the message.
    void on_tracker_reject(proton::tracker &tracker) override { again(tracker); }

    // The queue is gone.
    void on_tracker_release(proton::tracker &tracker) override { again(tracker); }

    void again(proton::tracker &tracker) {
        tracker.work_queue().schedule(proton::duration::SECOND, [this] {
            under_way = false;
            publish();
        });
    }

    // Accepts the message, unless this throws.
    void on_message(proton::delivery &, proton::message &message) override {
        seen.insert(proton::get<std::string>(message.body())); // the work: doing it twice does no harm
        close_when_done();
    }

    void close_when_done() {
        if (number <= MESSAGES || seen.size() < static_cast<size_t>(MESSAGES)) return;
        std::cout << MESSAGES << " messages are consumed" << std::endl;
        sender.connection().close(); // after the outcomes of all messages
    }

    void on_transport_error(proton::transport &transport) override {
        std::cout << "connection lost: " << transport.error().what() << std::endl;
    }
};

int main(int argc, char **argv) {
    std::vector<std::string> nodes(argv + 1, argv + argc);
    if (nodes.empty()) nodes = {"127.0.0.1:5672", "127.0.0.1:5673", "127.0.0.1:5674"};
    Survive survive(nodes);
    proton::container(survive).run();
}
