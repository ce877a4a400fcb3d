# For the other scripts, which read it: "install PACKAGE..." installs packages with apt-get, as root or
# with a sudo that needs no password. If it can't, $cannot contains the reason.
as_root=
if ! command -v apt-get >/dev/null 2>&1; then
	cannot="this system has no apt-get to install it"
elif [ "$(id -u)" = 0 ]; then
	cannot=
elif command -v sudo >/dev/null 2>&1 && sudo -n true >/dev/null 2>&1; then
	cannot=
	as_root="sudo -n"
else
	cannot="apt-get needs root to install it"
fi

install() {
	[ -z "$cannot" ] &&
		$as_root apt-get update -qq &&
		$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@"
}
