# frozen_string_literal: true

# Takes the place of Bundler, which would have the packages of bunny's Gemfile from an index of its own: what bunny's tests
# need is installed beside them. It also has tests that know only the standard ports reach the broker under test:
# QQ_INTEROP_PORT takes the place of 5672, QQ_INTEROP_TLS_PORT of 5671.

require "socket"

module Bundler
  def self.require(*); end
end

# bunny's tests of slow networks ask whether Toxiproxy runs.
module Toxiproxy
  def self.running?
    false
  end
end

module Redirected
  PORTS = { 5672 => ENV.fetch("QQ_INTEROP_PORT").to_i, 5671 => ENV.fetch("QQ_INTEROP_TLS_PORT").to_i }.freeze

  def tcp(host, port, *rest, **options)
    super(host, PORTS.fetch(port.to_i, port), *rest, **options)
  end
end

Socket.singleton_class.prepend(Redirected)
