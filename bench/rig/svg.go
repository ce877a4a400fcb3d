package rig

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"strings"
)

const (
	width      = 860 // in pixels. Pages on GitHub show it unscaled
	margin     = 20
	labelWidth = 158
	cellHeight = 34
	cellGap    = 3
	gridTop    = 156
	legendY    = 84
)

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
`

// A Swatch is a color in the legend, with its meaning: none, few, some or many.
type Swatch struct{ Class, Meaning string }

// A canvas collects the elements of a chart. Coordinates are in pixels from the upper left.
type canvas struct{ strings.Builder }

// SVG draws the grid.
func (g *Grid) SVG() string {
	c := new(canvas)
	c.text("title", margin, 36, g.Title)
	c.text("note", margin, 57, truncate(g.About, width-2*margin))
	x := float64(margin)
	for _, s := range g.Legend {
		c.rect(s.Class, x, legendY-11, 14, 14)
		c.text("", x+20, legendY, s.Meaning)
		x += 20 + textWidth(s.Meaning) + 12
	}
	c.text("note", x+8, legendY, g.Note)
	for i, column := range g.Columns {
		x, w := g.position(i)
		c.text("column middle", x+w/2, gridTop-41, truncate(column.first(), w))
		c.text("column middle", x+w/2, gridTop-26, truncate(column.Note, w))
		c.text("note", x+5, gridTop-6, g.Heads[0])
		c.text("note end", x+w-5, gridTop-6, g.Heads[1])
	}
	y := float64(gridTop)
	for i, row := range g.Rows {
		if row.Apart && i > 0 {
			y += 3 * cellGap
		}
		g.row(c, y, row)
		y += cellHeight + cellGap
	}
	height := y - cellGap + margin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %[1]d %.0[2]f" role="img" aria-labelledby="title desc">
<title id="title">%[3]s</title>
<desc id="desc">%[4]s</desc>
<style>%[5]s</style>
<rect class="sheet" x="0.5" y="0.5" width="%[6]d" height="%.0[7]f" rx="8"/>
%[8]s</svg>
`, width, height, escape(g.Title), escape(g.description()), stylesheet, width-1, height-1, c)
}

// position returns the left edge and the width of a column.
func (g *Grid) position(column int) (x, w float64) {
	w = (width - 2*margin - labelWidth - 2*cellGap) / float64(len(g.Columns))
	x = margin + labelWidth + float64(column)*w
	if g.Total && column == len(g.Columns)-1 {
		x += 2 * cellGap
	}
	return x, w - cellGap
}

func (g *Grid) row(c *canvas, y float64, n Name) {
	baseline := y + 14
	if n.Note == "" {
		baseline += 8
	}
	c.text("name", margin, baseline, truncate(n.first(), labelWidth-8))
	c.text("note", margin, y+29, truncate(n.Note, labelWidth-8))
	for i, column := range g.Columns {
		cell, ok := g.Cells[[2]string{n.Key, column.Key}]
		if !ok {
			continue
		}
		x, w := g.position(i)
		c.rect("rest", x, y, w, cellHeight)
		c.rect(cell.Class, x, y, w*max(0, min(1, cell.Fill)), cellHeight)
		c.text("big", x+5, y+23, cell.Left)
		c.text("end", x+w-5, y+22, cell.Right)
	}
}

// description returns the grid in words.
func (g *Grid) description() string {
	var b strings.Builder
	b.WriteString(g.About + ".")
	for _, row := range g.Rows {
		separator := " " + row.String() + ": "
		for _, column := range g.Columns {
			if cell, ok := g.Cells[[2]string{row.Key, column.Key}]; ok {
				fmt.Fprintf(&b, "%s%v %s", separator, column, cmp.Or(cell.Words, cell.String()))
				separator = "; "
			}
		}
		b.WriteString(".")
	}
	return b.String()
}

func (c *canvas) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(c, "<rect class=%q x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", class, x, y, w, h)
}

// text writes s with its baseline at y.
func (c *canvas) text(class string, x, y float64, s string) {
	if s != "" {
		fmt.Fprintf(c, "<text class=%q x=\"%.1f\" y=\"%.1f\">%s</text>\n", class, x, y, escape(s))
	}
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
