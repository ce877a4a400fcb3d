package chart

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// width is the width of a chart in pixels. Pages on GitHub show it unscaled.
const width = 860

const margin = 20

// stylesheet has a background, which makes a chart look the same on light and dark pages.
// Color-blind readers can distinguish blue from orange.
const stylesheet = `
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

// A canvas collects the elements of a chart. Coordinates are in pixels from the upper left.
type canvas struct {
	strings.Builder
	title       string
	description string // for screen readers
}

// newCanvas returns a canvas with the title and the subtitle of the table. It is empty below
// 70 pixels.
func newCanvas(t *table) *canvas {
	c := &canvas{title: t.title, description: t.description()}
	c.text("title", margin, 36, t.title)
	c.text("note", margin, 57, truncate(t.about, width-2*margin))
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

// swatch draws a patch of color with its meaning, and returns the start of the next patch.
func (c *canvas) swatch(class string, x, y float64, meaning string) float64 {
	c.rect(class, x, y-11, 14, 14)
	c.text("", x+20, y, meaning)
	return x + 20 + textWidth(meaning) + 12
}

// svg returns the content of the file.
func (c *canvas) svg(height float64) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %.0[2]f" role="img" aria-labelledby="title desc">
<title id="title">%[3]s</title>
<desc id="desc">%[4]s</desc>
<style>%[5]s</style>
<rect class="sheet" x="0.5" y="0.5" width="%[6]d" height="%.0[7]f" rx="8"/>
%[8]s</svg>
`, width, height, escape(c.title), escape(c.description), stylesheet, width-1, height-1, c)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder returns no errors
	return b.String()
}

// textWidth estimates the width of a text of the usual size in any font.
func textWidth(s string) float64 { return 6.8 * float64(len([]rune(s))) }

// truncate shortens a text to about maxWidth pixels.
func truncate(s string, maxWidth float64) string {
	r := []rune(s)
	if textWidth(s) <= maxWidth {
		return s
	}
	return string(r[:max(0, int(maxWidth/textWidth("x"))-1)]) + "…"
}
