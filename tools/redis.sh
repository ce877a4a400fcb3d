#!/bin/sh
# Makes sure that there is a redis-server for the tests that start one, if that
# can be had without asking: from apt-get, as root or by a sudo that wants no
# password. Without one those tests are skipped; with THROTTLE_REQUIRE_REDIS=1 in
# the environment that is an error.
set -u

if command -v redis-server >/dev/null 2>&1; then
	exit 0
fi

as_root=
if ! command -v apt-get >/dev/null 2>&1; then
	why="and there is no apt-get to install it"
elif [ "$(id -u)" != 0 ] && ! { command -v sudo && sudo -n true; } >/dev/null 2>&1; then
	why="and installing it with apt-get takes root"
else
	[ "$(id -u)" = 0 ] || as_root="sudo -n"
	echo "redis-server is missing: installing it with apt-get" >&2
	if {
		$as_root apt-get update -qq &&
			$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends redis-server
	} >&2 && command -v redis-server >/dev/null 2>&1; then
		exit 0
	fi
	why="and apt-get could not install it"
fi

if [ "${THROTTLE_REQUIRE_REDIS:-}" = 1 ]; then
	echo "error: redis-server is missing, $why, but THROTTLE_REQUIRE_REDIS=1 asks for it" >&2
	exit 1
fi
echo "note: redis-server is missing, $why: the tests that start a Redis server will be skipped" >&2
