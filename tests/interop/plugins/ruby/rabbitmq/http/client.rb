# frozen_string_literal: true

# Takes the place of the client of RabbitMQ's HTTP API (gem rabbitmq_http_api_client): what bunny's tests call.
# QQ_INTEROP_HTTP_PORT: that of the node which the tests are connected to.

require "json"
require "net/http"
require "ostruct"

module Faraday
  class ResourceNotFound < StandardError; end
end

module RabbitMQ
  module HTTP
    class Client
      # RabbitMQ lists a connection seconds after it was opened, with the next statistics. bunny's tests take a connection
      # that is listed for one whose channels, queues and consumers have been recovered, too.
      STATISTICS_S = 1

      def initialize(_url)
        @port = ENV.fetch("QQ_INTEROP_HTTP_PORT").to_i
      end

      def list_connections
        list("connections")
      end

      def list_channels
        list("channels")
      end

      def list_queues
        list("queues")
      end

      def list_exchanges(vhost)
        list("exchanges/#{URI.encode_www_form_component(vhost)}")
      end

      def close_connection(name)
        answer = ask(Net::HTTP::Delete, "connections/#{URI.encode_www_form_component(name).gsub("+", "%20")}")
        raise Faraday::ResourceNotFound, name if answer.is_a?(Net::HTTPNotFound)
      end

      private

      def list(path)
        sleep(STATISTICS_S)
        JSON.parse(ask(Net::HTTP::Get, path).body).map { |each| OpenStruct.new(each) }
      end

      def ask(method, path)
        request = method.new("/api/#{path}")
        request.basic_auth("guest", "guest")
        Net::HTTP.start("127.0.0.1", @port, read_timeout: 20) { |http| http.request(request) }
      end
    end
  end
end
