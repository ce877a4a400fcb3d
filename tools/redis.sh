#!/bin/sh
# Makes sure that there is the server that tests start: $THROTTLE_REDIS_SERVER, or
# redis-server, which is installed if that can be had without asking: from apt-get, as
# root or by a sudo that wants no password. Without one those tests are skipped; with
# THROTTLE_REQUIRE_REDIS=1 in the environment that is an error. A server that
# THROTTLE_REDIS_SERVER names must be there.
#
# With a name, such as valkey-server, it installs that package in the same way, but says
# nothing when it can't.
set -u

as_root=
if ! command -v apt-get >/dev/null 2>&1; then
	cannot="there is no apt-get to install it"
elif [ "$(id -u)" = 0 ]; then
	cannot=
elif command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
	cannot=
	as_root="sudo -n"
else
	cannot="installing it with apt-get takes root"
fi

install() {
	[ -z "$cannot" ] &&
		$as_root apt-get update -qq &&
		$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$1"
}

if [ -n "${1:-}" ]; then
	command -v "$1" >/dev/null 2>&1 || install "$1" >/dev/null 2>&1
	exit 0
fi

if [ -n "${THROTTLE_REDIS_SERVER:-}" ]; then
	command -v "$THROTTLE_REDIS_SERVER" >/dev/null 2>&1 && exit 0
	echo "error: THROTTLE_REDIS_SERVER asks for $THROTTLE_REDIS_SERVER, which is missing" >&2
	exit 1
fi

if command -v redis-server >/dev/null 2>&1; then
	exit 0
fi
if [ -z "$cannot" ]; then
	echo "redis-server is missing: installing it with apt-get" >&2
	if install redis-server >&2 && command -v redis-server >/dev/null 2>&1; then
		exit 0
	fi
	cannot="apt-get could not install it"
fi

if [ "${THROTTLE_REQUIRE_REDIS:-}" = 1 ]; then
	echo "error: redis-server is missing, and $cannot, but THROTTLE_REQUIRE_REDIS=1 asks for it" >&2
	exit 1
fi
echo "note: redis-server is missing, and $cannot: the tests that start a Redis server will be skipped" >&2
