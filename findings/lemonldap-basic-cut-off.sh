#!/usr/bin/env bash
# liblemonldap-ng-portal-perl 2.16.1+ds-deb12u10 (Debian 12), Perl 5.36: LemonLDAP::NG reads the credentials of HTTP Basic up to
# the first character of Base 64 that is no letter, digit or underscore, and does not decode them as a form.
#
# Credentials whose Base 64 has a plus or a slash are cut off there: a tilde, which needs no
# encoding by any of the standards, at every third place becomes a plus. One would guess that a secret of letters,
# digits and marks works as well by HTTP Basic as in the form.
#
# Output seen:
#   client:abcdefgh   read as client:abcdefgh
#   client:a~cdefgh   read as client:a
#   client:a%2Bb      read as client:a%2Bb
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir "$directory/packages" "$directory/root"
cd "$directory/packages"
wanted=(liblemonldap-ng-portal-perl=2.16.1+ds-deb12u10 libstring-random-perl libio-string-perl)
apt-get -s --no-install-recommends install "${wanted[@]}" 2>/dev/null |
    awk '$1 == "Inst" && $3 !~ /^\[/ {print $2}' | xargs apt-get -qq -o APT::Sandbox::User=root download
for package in *.deb; do dpkg-deb -x "$package" "$directory/root"; done
cat >"$directory/finding.pl" <<'PERL'
use strict;
use warnings;
use MIME::Base64;
require Lemonldap::NG::Portal::Lib::OpenIDConnect;

{ package Quiet; sub new { bless {}, shift } sub debug { } sub error { } }
{ package Portal; sub new { bless {}, shift } sub logger { Quiet->new } }
{ package Request; sub new { bless { value => $_[1] }, $_[0] } sub authorization { $_[0]{value} } sub param { undef } }

my $failed = 0;
for my $case ( [ "abcdefgh", "abcdefgh" ], [ "a~cdefgh", "a" ], [ "a%2Bb", "a%2Bb" ] ) {
    my ( $secret, $expected ) = @$case;
    my $request = Request->new( "Basic " . encode_base64( "client:$secret", "" ) );
    my ( $id, $read ) =
      Lemonldap::NG::Portal::Lib::OpenIDConnect::getEndPointAuthenticationCredentials( Portal->new, $request );
    printf "%-17s read as %s:%s\n", "client:$secret", $id, $read;
    $failed = 1 if $read ne $expected;
}
exit $failed;
PERL
PERL5LIB=$(printf '%s:' "$directory"/root/usr/share/perl5 "$directory"/root/usr/lib/*/perl5/5.*) perl "$directory/finding.pl"
