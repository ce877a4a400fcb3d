// Package pagetest looks at the live page with a real browser: Chromium, which the tests start and
// drive. It is a separate module because what drives the browser must not become a dependency of
// throttle.
//
// The tests ask for roles, accessible names and texts, as people and screen readers do, and not for
// the page's own names. They need chromium, or the browser that $THROTTLE_CHROMIUM names, and npm,
// which gets axe-core. Tests for which something is missing are skipped, or fail if
// THROTTLE_REQUIRE_CHROMIUM is 1.
//
//	go test ./...                                  # from this directory
//	go test -run States . -args -screenshots /tmp/page   # writes what the page looks like
package pagetest
