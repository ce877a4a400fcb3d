#!/bin/sh
# Makes sure that what the tests of the live page need is installed: chromium, or the browser that
# $THROTTLE_CHROMIUM names, and npm, which gets axe-core. It installs them with apt-get, as root or
# with a sudo that needs no password. If it can't, those tests are skipped; with
# THROTTLE_REQUIRE_CHROMIUM=1 in the environment, this is an error.
set -u

missing=
if [ -n "${THROTTLE_CHROMIUM:-}" ]; then
	if ! command -v "$THROTTLE_CHROMIUM" >/dev/null 2>&1; then
		echo "error: THROTTLE_CHROMIUM is $THROTTLE_CHROMIUM, which is not installed: install it or unset the variable" >&2
		exit 1
	fi
elif ! command -v chromium >/dev/null 2>&1 && ! command -v chromium-browser >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
	missing=" chromium"
fi
command -v npm >/dev/null 2>&1 || missing="$missing npm"
[ -z "$missing" ] && exit 0

. "$(dirname "$0")/apt.sh"
if [ -z "$cannot" ]; then
	echo "not installed:$missing: installing it with apt-get" >&2
	# shellcheck disable=SC2086
	install $missing >&2 && exit 0
	cannot="apt-get could not install it"
fi
if [ "${THROTTLE_REQUIRE_CHROMIUM:-}" = 1 ]; then
	echo "error: THROTTLE_REQUIRE_CHROMIUM=1 requires$missing, and $cannot" >&2
	exit 1
fi
echo "note: not installed:$missing, and $cannot: tests of the live page in a browser are skipped" >&2
