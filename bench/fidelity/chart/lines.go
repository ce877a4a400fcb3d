package chart

import (
	"fmt"
	"math"
	"strings"
)

// A Plot shows how times grow with a number, in a panel for each operation. Both scales are
// logarithmic: a time that is proportional to the number rises at 45 degrees.
type Plot struct {
	Title, About string
	Panels       []Panel
}

// A Panel has a line for each series. It has at most four lines.
type Panel struct {
	Name  string
	Lines []Line
}

// A Line has the times Y, in nanoseconds, at the numbers X.
type Line struct {
	Name string
	X, Y []float64
}

const (
	plotTop  = 130
	plotSide = 160 // of a panel, which has 4 decades on each axis
	decade   = plotSide / 4.0
	minPower = 2 // the vertical axis begins at 10² ns
)

var strokes = []string{"#2f7fc1", "#e57e3c", "#3f8f4f", "#7a5ea8"}

// SVG draws the plot.
func (p Plot) SVG() string {
	c := &canvas{title: p.Title, description: p.About}
	c.text("title", margin, 36, p.Title)
	c.text("note", margin, 57, p.About)
	for i, l := range p.Panels[0].Lines {
		x := margin + float64(i)*120
		fmt.Fprintf(c, "<rect x=\"%.1f\" y=\"78\" width=\"14\" height=\"4\" fill=%q/>\n", x, strokes[i%len(strokes)])
		c.text("", x+20, 84, l.Name)
	}
	for i, panel := range p.Panels {
		panel.draw(c, margin+34+float64(i)*(plotSide+46))
	}
	return c.svg(plotTop + plotSide + 60)
}

func (p Panel) draw(c *canvas, left float64) {
	c.text("name", left, plotTop-12, p.Name)
	for i := range 5 {
		at := float64(i) * decade
		c.rect("line", left, plotTop+at, plotSide, 1)
		c.text("note end", left-4, plotTop+at+4, []string{"1 ms", "100 µs", "10 µs", "1 µs", "100 ns"}[i])
		if i < 4 {
			c.text("note middle", left+at+decade/2, plotTop+plotSide+18, []string{"10³", "10⁴", "10⁵", "10⁶"}[i])
		}
	}
	c.text("note middle", left+plotSide/2, plotTop+plotSide+36, "waiting")
	for i, l := range p.Lines {
		var points []string
		for k := range l.X {
			x := left + (math.Log10(l.X[k])-3)*decade + decade/2
			y := plotTop + plotSide - (math.Log10(max(l.Y[k], 1))-minPower)*decade
			points = append(points, fmt.Sprintf("%.1f,%.1f", x, y))
		}
		fmt.Fprintf(c, "<polyline fill=\"none\" stroke=%q stroke-width=\"2\" points=%q/>\n", strokes[i%len(strokes)], strings.Join(points, " "))
	}
}
