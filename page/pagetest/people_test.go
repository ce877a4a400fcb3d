package pagetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/apithrottle/throttle"
)

// furnish gives the page everything that people can use.
func furnish(t *testing.T, s *site) *throttle.Limiter {
	t.Helper()
	l := s.limiter("api", "1000/h + 100000/d")
	s.send(l, 3)
	model := s.limiter("model", "100000000/month;unit=usd;budget=true")
	if p, err := model.Acquire(t.Context(), throttle.Cost{"usd": 95_000_000}); err != nil {
		t.Error(err)
	} else {
		p.Release()
	}
	mail := s.limiter("mail", "1/h")
	s.send(mail, 1)
	s.queue(mail, 2, throttle.Normal)
	if err := s.limiter("slack", "50/m").Pause(t.Context(), 10*time.Minute); err != nil {
		t.Fatal(err)
	}
	return l
}

// controls lists what a keyboard must reach.
const controls = `[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
	.filter(e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility({visibilityProperty: true}))`

// The tab key reaches everything, in the order of the page, and Enter opens.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := furnish(t, s)
	w := open(t, serve(t, s))
	w.awaits("1000/h", 3, 1000)
	w.until("the pause is shown", func() bool { return strings.Contains(w.text(), "slack") })
	type place struct {
		Index   int // among the controls; -1 for the document itself
		Text    string
		Summary bool
		Open    bool
		Ring    bool // one sees where one is
	}
	where := func() place {
		return evaluate[place](w, `(() => {
			const e = document.activeElement, style = getComputedStyle(e)
			const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== "none"
			return {Index: `+controls+`.indexOf(e), Text: e.outerHTML.slice(0, 100), Ring: ring,
				Summary: e.matches("summary"), Open: !!e.parentElement && !!e.parentElement.open}
		})()`)
	}
	summaries, last := 0, -1
	for range 200 {
		w.press(kb.Tab)
		at := where()
		if at.Index < 0 {
			break // the browser's own controls
		}
		if at.Index != last+1 {
			t.Errorf("the tab key goes from control %d to %d: %s", last, at.Index, at.Text)
		}
		if !at.Ring {
			t.Errorf("one does not see the focus of %s", at.Text)
		}
		last = at.Index
		if at.Summary {
			summaries++
			w.press(kb.Enter)
			if now := where(); now.Index != at.Index || now.Open == at.Open {
				t.Errorf("Enter does not open %s", at.Text)
			}
		}
	}
	if n := evaluate[int](w, controls+`.length`); last+1 != n || summaries == 0 {
		t.Errorf("the tab key reaches %d controls, %d of which open something, want %d", last+1, summaries, n)
	}

	// Updates neither close what is open nor move the focus.
	evaluate[bool](w, controls+`.findLast(e => e.matches("summary")).focus() || true`)
	before := where()
	s.send(l, 4)
	s.awaitEvents(2)
	w.awaits("1000/h", 7, 1000)
	if after := where(); after != before || !after.Open {
		t.Errorf("updates move the focus from %+v to %+v", before, after)
	}
	if n := evaluate[int](w, `document.querySelectorAll("details[open]").length`); n != summaries {
		t.Errorf("%d of %d details are open after updates", n, summaries)
	}
}

// A screen reader finds the page's parts, and is told of pauses and bans, but not of numbers.
func TestScreenReader(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l := furnish(t, s)
	w := open(t, serve(t, s))
	w.awaits("1000/h", 3, 1000)
	nodes := w.nodes("")
	has := func(role, name string) bool {
		return slices.ContainsFunc(nodes, func(n node) bool { return n.role == role && strings.Contains(ungrouped(n.name), name) })
	}
	for _, want := range []node{
		{role: "main"}, {role: "heading", name: "api"}, {role: "heading", name: "model"}, {role: "heading", name: "mail"},
		{role: "meter", name: "1000/h"}, {role: "meter", name: "100000/d"}, {role: "meter", name: "usd"}, {role: "meter", name: "1/h"},
	} {
		if !has(want.role, want.name) {
			t.Errorf("there is no %s %q", want.role, want.name)
		}
	}
	for _, n := range nodes {
		if n.role == "meter" && n.name == "" || (n.role == "image" || n.role == "img") && n.name == "" {
			t.Errorf("a %s has no name", n.role)
		}
	}
	if charts, tables := evaluate[int](w, `document.querySelectorAll("svg[role=img], canvas").length`), evaluate[int](w, `document.querySelectorAll("details table caption").length`); charts == 0 || tables < charts {
		t.Errorf("%d charts have %d tables", charts, tables)
	}

	// What is announced from now on.
	evaluate[bool](w, `(() => {
		window.announced = []
		for (const e of document.querySelectorAll("[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log], output"))
			new MutationObserver(() => window.announced.push(e.innerText)).observe(e, {childList: true, characterData: true, subtree: true})
		return true
	})()`)
	announced := func() []string { return evaluate[[]string](w, `window.announced`) }
	for range 3 {
		s.send(l, 5)
		s.awaitEvents(1)
	}
	w.awaits("1000/h", 18, 1000)
	if said := announced(); len(said) > 0 {
		t.Errorf("traffic is announced: %q", said)
	}
	if err := l.Pause(t.Context(), 5*time.Minute); err != nil {
		t.Fatal(err)
	}
	w.until("the pause is announced", func() bool {
		said := announced()
		return len(said) > 0 && strings.Contains(said[len(said)-1], "api")
	})
	said := len(announced())
	s.awaitEvents(3)
	if now := announced(); len(now) > said {
		t.Errorf("one pause is announced %d times: %q", len(now), now)
	}
}

// With text of twice the size nothing is lost.
func TestZoom(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	furnish(t, s)
	w := open(t, serve(t, s))
	w.awaits("1000/h", 3, 1000)
	w.look(1280)
	// Texts, and how high a line of each is.
	const sizes = `(() => {
		const high = n => { const r = document.createRange(); r.selectNodeContents(n); return r.getClientRects()[0]?.height }
		const texts = [...document.body.querySelectorAll("*")].filter(e => e.checkVisibility() && !e.closest(".unseen"))
			.flatMap(e => [...e.childNodes].filter(n => n.nodeType === 3 && n.data.trim() && high(n)))
		return new Map(texts.map(n => [n, high(n)]))
	})()`
	evaluate[bool](w, `(window.before = `+sizes+`).size > 0`)
	evaluate[bool](w, `(document.documentElement.style.fontSize = "200%") !== ""`)
	w.fill(1280, 1)
	w.until("all texts have grown", func() bool {
		return evaluate[int](w, `[...`+sizes+`].filter(([n, h]) => before.has(n) && h < 1.8 * before.get(n)).length`) == 0
	})
	w.whole("text of 200 %")
	w.fits("text of 200 %")
	w.picture("text of 200 %")
	evaluate[bool](w, `(document.documentElement.style.fontSize = "") === ""`)

	w.fill(640, 2)
	w.whole("page of 200 %")
	w.fits("page of 200 %")
	w.picture("page of 200 %")
}

// whole checks that no text is cut off or lies over another.
func (w *tab) whole(what string) {
	w.t.Helper()
	cut := evaluate[[]string](w, `(() => {
		const found = []
		const texts = [...document.body.querySelectorAll("*")].filter(e => e.checkVisibility() && !e.closest(".unseen") && e.clientWidth > 1)
		for (const e of texts) {
			const style = getComputedStyle(e)
			const clips = v => v === "hidden" || v === "clip"
			if (clips(style.overflowX) && e.scrollWidth > e.clientWidth + 1 || clips(style.overflowY) && e.scrollHeight > e.clientHeight + 1)
				found.push("cut off: " + e.outerHTML.slice(0, 120))
		}
		const boxes = []
		for (const e of texts) for (const n of e.childNodes) if (n.nodeType === 3 && n.data.trim()) {
			const range = document.createRange()
			range.selectNodeContents(n)
			for (const r of range.getClientRects()) boxes.push({r, n})
		}
		for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
			const a = boxes[i].r, b = boxes[j].r
			const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)
			if (boxes[i].n !== boxes[j].n && x > 2 && y > Math.min(a.height, b.height) / 2) found.push("one over the other: " + boxes[i].n.data + " | " + boxes[j].n.data)
		}
		return found.slice(0, 10)
	})()`)
	for _, c := range cut {
		w.t.Errorf("%s: %s", what, c)
	}
}

// Nothing moves for people who want no motion, and nothing depends on colors of our own.
func TestPreferences(t *testing.T) {
	t.Parallel()
	needAxe(t)
	s := newSite(t)
	furnish(t, s)
	w := open(t, serve(t, s))
	w.awaits("1000/h", 3, 1000)
	w.look(1280, "prefers-reduced-motion", "reduce")
	moving := evaluate[[]string](w, `[...document.querySelectorAll("*")].filter(e => ["", "::before", "::after"].some(p => {
		const s = getComputedStyle(e, p || null), long = v => v.split(",").some(d => parseFloat(d) > 0.01)
		return long(s.transitionDuration) && s.transitionProperty !== "none" || long(s.animationDuration) && s.animationName !== "none" || s.scrollBehavior === "smooth"
	})).map(e => e.outerHTML.slice(0, 100))`)
	if len(moving) > 0 || evaluate[int](w, `document.getAnimations().length`) > 0 {
		t.Errorf("these move: %s", strings.Join(moving, "\n"))
	}
	for i, features := range [][]string{{"forced-colors", "active"}, {"prefers-contrast", "more"}} {
		w.look(1280, features...)
		w.passesAxe(fmt.Sprint(features))
		w.picture(fmt.Sprintf("preference %d", i+1))
	}
}
