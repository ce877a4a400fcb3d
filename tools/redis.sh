#!/bin/sh
# Makes sure that the Redis server for the tests is installed: $THROTTLE_REDIS_SERVER, or
# redis-server. It installs redis-server with apt-get, as root or with a sudo that needs no
# password. If it can't, the tests that start a server are skipped; with
# THROTTLE_REQUIRE_REDIS=1 in the environment, this is an error. A server named by
# THROTTLE_REDIS_SERVER must already be installed.
#
# With an argument, such as valkey-server, it installs that package in the same way, and
# ignores failures.
set -u

. "$(dirname "$0")/apt.sh"

if [ -n "${1:-}" ]; then
	command -v "$1" >/dev/null 2>&1 || install "$1" >/dev/null 2>&1
	exit 0
fi

if [ -n "${THROTTLE_REDIS_SERVER:-}" ]; then
	command -v "$THROTTLE_REDIS_SERVER" >/dev/null 2>&1 && exit 0
	echo "error: THROTTLE_REDIS_SERVER is $THROTTLE_REDIS_SERVER, which is not installed: install it or unset the variable" >&2
	exit 1
fi

if command -v redis-server >/dev/null 2>&1; then
	exit 0
fi
if [ -z "$cannot" ]; then
	echo "redis-server is not installed: installing it with apt-get" >&2
	if install redis-server >&2 && command -v redis-server >/dev/null 2>&1; then
		exit 0
	fi
	cannot="apt-get could not install it"
fi

if [ "${THROTTLE_REQUIRE_REDIS:-}" = 1 ]; then
	echo "error: THROTTLE_REQUIRE_REDIS=1 requires redis-server, and $cannot" >&2
	exit 1
fi
echo "note: redis-server is not installed, and $cannot: tests that start a Redis server are skipped" >&2
