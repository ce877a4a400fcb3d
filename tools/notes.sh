#!/bin/sh
# notes.sh VERSION            prints the section of a version such as v0.1.0 of CHANGELOG.md for the page of a
#                             release: each paragraph is one line, and links lead to the files of the version
# notes.sh VERSION GO IMAGE   adds how to verify the programs, with the version of Go that built them, and the
#                             image, with its digest
#
# A release candidate without a section of its own has what is under Unreleased.
#
# CHANGELOG in the environment names another file.
set -eu
version=$1
changelog=${CHANGELOG:-$(dirname "$0")/../CHANGELOG.md}
repository=apithrottle/throttle

case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*)
	echo "notes.sh: $version is not a version such as v0.1.0" >&2
	exit 2
	;;
esac

section="## [${version#v}]"
case $version in
*-*) grep -qF "$section" "$changelog" || section="## [Unreleased]" ;;
esac

notes=$(awk -v section="$section" -v files="https://github.com/$repository/blob/$version/" '
	function flush() {
		if (text == "") return
		done = ""
		while (match(text, /\]\([^)]*\)/)) {
			target = substr(text, RSTART + 2, RLENGTH - 3)
			if (target ~ /^#/) target = files "CHANGELOG.md" target
			else if (target !~ /^[a-z]+:/) target = files target
			done = done substr(text, 1, RSTART + 1) target ")"
			text = substr(text, RSTART + RLENGTH)
		}
		print done text
		text = ""
	}
	index($0, section) == 1 { on = 1; next }
	/^## / || /^\[[^]]*\]: / { flush(); on = 0 }
	!on { next }
	/^```/ { flush(); code = !code; print; next }
	code { print; next }
	/^$/ { flush(); if (some) print; next }
	/^#/ { flush(); print; some = 1; next }
	/^ *[-*|] ?/ { flush() }
	{ some = 1; line = $0; if (text != "") sub(/^ +/, " ", line); text = text (text != "" && line !~ /^ / ? " " : "") line }
	END { flush() }
' "$changelog")
if [ -z "$notes" ]; then
	echo "notes.sh: $changelog has no section \"$section\", or an empty one" >&2
	exit 1
fi
printf '%s\n' "$notes"

[ $# -gt 1 ] || exit 0
cat <<END

### Verify

The programs were built by $2 with \`make dist\`, which builds the same bits on every machine. \`SHA256SUMS\` is signed by the release workflow of this tag:

\`\`\`sh
cosign verify-blob SHA256SUMS --bundle SHA256SUMS.sigstore.json \\
  --certificate-identity https://github.com/$repository/.github/workflows/release.yml@refs/tags/$version \\
  --certificate-oidc-issuer https://token.actions.githubusercontent.com
sha256sum --check --ignore-missing SHA256SUMS
gh attestation verify throttle-linux-amd64 --repo $repository
\`\`\`

The image has the same programs for linux/amd64 and linux/arm64:

\`\`\`sh
gh attestation verify oci://$3 --repo $repository
docker run --rm $3 plan '5/s + 10000/h' 10000
\`\`\`
END
