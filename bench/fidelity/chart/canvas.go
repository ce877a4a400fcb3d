package chart

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// width is that of a chart in pixels. A page on GitHub shows it unscaled.
const width = 860

const margin = 20

// sheet has a background of its own, so that a chart reads the same on light and
// dark pages. Blue against orange is told apart by the colour-blind too.
const sheet = `
.sheet { fill: #ffffff; stroke: #d0d7de }
text { font: 12px -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 19px; font-weight: 600 }
.name { font-size: 13px; font-weight: 600 }
.column { font-weight: 600 }
.big { font-size: 15px; font-weight: 700 }
.note { fill: #57606a }
.end { text-anchor: end }
.middle { text-anchor: middle }
.rest { fill: #eceff2 }
.none { fill: #8cc4ea }
.few { fill: #fde0c5 }
.some { fill: #f8b377 }
.many { fill: #e57e3c }
.line { fill: #d0d7de }
`

// A canvas collects what is drawn. Lengths are in pixels from the upper left.
type canvas struct {
	strings.Builder
	title, description string // the latter for those who can't see the chart
}

// newCanvas has the title of the table and what it is about, and is empty from 70
// pixels on.
func newCanvas(t *table) *canvas {
	c := &canvas{title: t.title, description: t.description()}
	c.text("title", margin, 36, t.title)
	c.text("note", margin, 57, fit(t.about, width-2*margin))
	return c
}

func (c *canvas) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(c, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", class, x, y, w, h)
}

// text writes s with its baseline at y.
func (c *canvas) text(class string, x, y float64, s string) {
	if s == "" {
		return
	}
	fmt.Fprintf(c, "<text class=%q x=\"%.1f\" y=\"%.1f\">%s</text>\n", class, x, y, escape(s))
}

// swatch draws a patch of colour with its meaning, and returns where the next begins.
func (c *canvas) swatch(class string, x, y float64, meaning string) float64 {
	c.rect(class, x, y-11, 14, 14)
	c.text("", x+20, y, meaning)
	return x + 20 + extent(meaning) + 12
}

// svg is the file.
func (c *canvas) svg(height float64) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %.0[2]f" role="img" aria-labelledby="title desc">
<title id="title">%[3]s</title>
<desc id="desc">%[4]s</desc>
<style>%[5]s</style>
<rect class="sheet" x="0.5" y="0.5" width="%[6]d" height="%.0[7]f" rx="8"/>
%[8]s</svg>
`, width, height, escape(c.title), escape(c.description), sheet, width-1, height-1, c)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes everything
	return b.String()
}

// extent is about how wide a text of the usual size gets, whatever the font.
func extent(s string) float64 { return 6.8 * float64(len([]rune(s))) }

// fit shortens a text to about so many pixels.
func fit(s string, most float64) string {
	r := []rune(s)
	if extent(s) <= most {
		return s
	}
	return string(r[:max(0, int(most/extent("x"))-1)]) + "…"
}
