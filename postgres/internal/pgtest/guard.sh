# Waits until its input ends, as it does when the test has ended, killed or not. Then it ends the
# processes whose working directory is $1, $2 or within them, as those of a PostgreSQL server are, and
# removes both. PostgreSQL also ends by itself without its first process, but not while it is suspended.
read -r _

processes() {
	find /proc/[0-9]* -maxdepth 1 -name cwd \( -lname "$1" -o -lname "$1/*" -o -lname "$2" -o -lname "$2/*" \) 2>/dev/null |
		cut -d / -f 3
}

all() {
	how=$1
	shift
	for pid in $(processes "$@"); do kill -"$how" "$pid" 2>/dev/null; done
}

all CONT "$@"
all QUIT "$@" # at once, but without leaving shared memory behind
left=100
while [ -n "$(processes "$@")" ] && [ $((left -= 1)) -gt 0 ]; do sleep 0.02; done
all KILL "$@"
rm -rf "$@"
