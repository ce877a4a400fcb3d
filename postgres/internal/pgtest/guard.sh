# Waits until its input ends, as it does when the test has ended, killed or not. Then it ends the
# processes whose working directory is $1 or within it, as those of a PostgreSQL server are, and removes
# $1. PostgreSQL also ends by itself without its first process, but not while it is suspended.
read -r _

processes() {
	find /proc/[0-9]* -maxdepth 1 -name cwd \( -lname "$1" -o -lname "$1/*" \) 2>/dev/null | cut -d / -f 3
}

signal() {
	for pid in $(processes "$2"); do kill -"$1" "$pid" 2>/dev/null; done
}

signal CONT "$1"
signal QUIT "$1" # at once, but without leaving shared memory behind
left=100
while [ -n "$(processes "$1")" ] && [ $((left -= 1)) -gt 0 ]; do sleep 0.02; done
signal KILL "$1"
rm -rf "$1"
