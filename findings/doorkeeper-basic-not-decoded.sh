#!/usr/bin/env bash
# ruby-doorkeeper 5.5.0-2+deb12u1 with Debian's Ruby 3.1 (Debian 12): Doorkeeper takes the client's secret from HTTP Basic as it
# stands there, and does not decode its form encoding.
#
# RFC 6749, section 2.3.1, has the client encode identifier and secret as a form does before it joins them. A client that
# does so is refused with `invalid_client` as soon as its secret has a character that is encoded. Doorkeeper's own generator
# makes secrets without such characters, so that this comes up with secrets that were set or taken over.
#
# Output seen:
#   secret a+b/c=  sent as the RFC has it, a%2Bb%2Fc%3D: read as a%2Bb%2Fc%3D
#   secret a+b/c=  sent as it is, a+b/c=:                read as a+b/c=
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir "$directory/packages" "$directory/root"
cd "$directory/packages"
apt-get -qq -o APT::Sandbox::User=root download ruby-doorkeeper=5.5.0-2+deb12u1 ruby3.1 libruby3.1 libyaml-0-2 \
    ruby-activesupport ruby-concurrent ruby-i18n ruby-tzinfo
for package in *.deb; do dpkg-deb -x "$package" "$directory/root"; done
root=$directory/root
cat >"$directory/finding.rb" <<'RUBY'
require "base64"
require "active_support/core_ext/module/delegation"
require "active_support/core_ext/object/blank"
gem = Dir[File.join(ENV["ROOT"], "usr/share/rubygems-integration/all/gems/doorkeeper-*")].first
load File.join(gem, "lib/doorkeeper/oauth/client/credentials.rb")

Request = Struct.new(:authorization)
def read(sent)
  request = Request.new("Basic " + Base64.strict_encode64("client:#{sent}"))
  Doorkeeper::OAuth::Client::Credentials.from_request(request, :from_basic).secret
end

encoded, plain = read("a%2Bb%2Fc%3D"), read("a+b/c=")
puts "secret a+b/c=  sent as the RFC has it, a%2Bb%2Fc%3D: read as #{encoded}"
puts "secret a+b/c=  sent as it is, a+b/c=:                read as #{plain}"
exit encoded == "a%2Bb%2Fc%3D" && plain == "a+b/c=" ? 0 : 1
RUBY
libraries=$(printf '%s:' "$root"/usr/lib/*-linux-gnu)
paths=$(printf '%s:' "$root"/usr/lib/ruby/3.1.0 "$root"/usr/lib/*/ruby/3.1.0 "$root"/usr/lib/ruby/vendor_ruby \
    "$root"/usr/share/rubygems-integration/all/gems/*/lib "$root"/usr/share/rubygems-integration/all/gems/*/lib/*-ruby)
ROOT=$root LD_LIBRARY_PATH=$libraries RUBYLIB=$paths "$root/usr/bin/ruby3.1" --disable-gems "$directory/finding.rb"
