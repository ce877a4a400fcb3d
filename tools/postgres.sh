#!/bin/sh
# Makes sure that the PostgreSQL server and the PgBouncer for the tests are installed. The server is the
# one in $THROTTLE_POSTGRES_BIN, on the PATH, or in /usr/lib/postgresql/VERSION/bin, where Debian has it.
# It installs postgresql and pgbouncer with apt-get, as root or with a sudo that needs no password, and
# starts neither. If it can't, the tests that start them are skipped; with THROTTLE_REQUIRE_POSTGRES=1
# in the environment, this is an error. A server in $THROTTLE_POSTGRES_BIN must already be installed.
set -u

. "$(dirname "$0")/apt.sh"

has_server() {
	for bin in $(command -v initdb) /usr/lib/postgresql/*/bin/initdb; do
		[ -x "$bin" ] && return
	done
	return 1
}

missing() {
	has_server || echo postgresql
	command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ] || echo pgbouncer
}

# quiet installs packages without a cluster of their own and without starting what they contain, because
# the tests start their own servers. It leaves alone the settings of a system that has some.
quiet() {
	$as_root sh -c '
		conf=/etc/postgresql-common/createcluster.conf policy=/usr/sbin/policy-rc.d
		[ -e $conf ] || { mkdir -p ${conf%/*} && echo "create_main_cluster = false" >$conf; }
		[ -e $policy ] || { printf "#!/bin/sh\n# throttle\nexit 101\n" >$policy && chmod +x $policy; }'
	install "$@"
	status=$?
	$as_root sh -c '! grep -qx "# throttle" /usr/sbin/policy-rc.d || rm -f /usr/sbin/policy-rc.d'
	return $status
}

if [ -n "${THROTTLE_POSTGRES_BIN:-}" ] && ! [ -x "$THROTTLE_POSTGRES_BIN/initdb" ]; then
	echo "error: THROTTLE_POSTGRES_BIN is $THROTTLE_POSTGRES_BIN, which has no initdb: install it or unset the variable" >&2
	exit 1
fi

packages=$(missing)
[ -z "$packages" ] && exit 0
if [ -z "$cannot" ]; then
	echo "installing" $packages "with apt-get" >&2
	# shellcheck disable=SC2086 # these are several words
	quiet $packages >&2
	packages=$(missing)
	[ -z "$packages" ] && exit 0
	cannot="apt-get could not install it"
fi

if [ "${THROTTLE_REQUIRE_POSTGRES:-}" = 1 ]; then
	echo "error: THROTTLE_REQUIRE_POSTGRES=1 requires" $packages", and $cannot" >&2
	exit 1
fi
echo "note:" $packages "is not installed, and $cannot: tests that start it are skipped" >&2
