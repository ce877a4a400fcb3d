package chart

import (
	"math"
	"strconv"
)

const (
	labelWidth = 158
	cellHeight = 34
	cellGap    = 3
	gridTop    = 156
)

// grid draws a cell for each result, with the refusals of 1,000 requests and the utilization.
// The filled part of a cell shows the utilization, and its color the share of refusals.
func (t *table) grid() string {
	if len(t.results) == 0 {
		return ""
	}
	c := newCanvas(t)
	x := c.swatch("none", margin, 84, "none refused")
	x = c.swatch("few", x, 84, "up to 5 % refused")
	x = c.swatch("some", x, 84, "up to 25 %")
	x = c.swatch("many", x, 84, "more")
	c.text("note", x+8, 84, "Filled part: used. 429s: of 1,000 requests.")
	for i, column := range t.columns {
		t.heading(c, i, column)
	}
	if len(t.columns) > 1 {
		t.heading(c, len(t.columns), name{label: "all", note: "providers"})
	}
	y := float64(gridTop)
	for i, row := range t.rows {
		if i > 0 && row.isThrottle() != t.rows[i-1].isThrottle() {
			y += 3 * cellGap
		}
		t.row(c, y, row)
		y += cellHeight + cellGap
	}
	return c.svg(y - cellGap + margin)
}

// position returns the left edge and the width of a column. One more column, separated by
// a gap, holds the totals.
func (t *table) position(column int) (x, w float64) {
	w = (width - 2*margin - labelWidth - 2*cellGap) / float64(len(t.columns)+1)
	x = margin + labelWidth + float64(column)*w
	if column == len(t.columns) {
		x += 2 * cellGap
	}
	return x, w - cellGap
}

func (t *table) heading(c *canvas, column int, n name) {
	x, w := t.position(column)
	c.text("column middle", x+w/2, gridTop-41, truncate(n.label, w))
	c.text("column middle", x+w/2, gridTop-26, truncate(n.note, w))
	c.text("note", x+5, gridTop-6, "429s")
	c.text("note end", x+w-5, gridTop-6, "used")
}

func (t *table) row(c *canvas, y float64, n name) {
	baseline := y + 14
	if n.note == "" {
		baseline += 8
	}
	c.text("name", margin, baseline, truncate(n.label, labelWidth-8))
	c.text("note", margin, y+29, truncate(n.note, labelWidth-8))
	var all []Row
	for i, column := range t.columns {
		if r, ok := t.results[cell{n.key, column.key}]; ok {
			t.cell(c, i, y, r)
			all = append(all, r)
		}
	}
	if len(all) == len(t.columns) && len(all) > 1 { // totals of fewer columns don't compare
		t.cell(c, len(t.columns), y, total(all))
	}
}

func (t *table) cell(c *canvas, column int, y float64, r Row) {
	x, w := t.position(column)
	c.rect("rest", x, y, w, cellHeight)
	c.rect(color(r), x, y, w*min(1, r.Utilization), cellHeight)
	c.text("big", x+5, y+23, perThousand(r))
	c.text("end", x+w-5, y+22, used(r))
}

// total sums the requests, and averages the utilization.
func total(rows []Row) (sum Row) {
	for _, r := range rows {
		sum.Sent += r.Sent
		sum.Refused += r.Refused
		sum.Utilization += r.Utilization / float64(len(rows))
	}
	return sum
}

func color(r Row) string {
	switch share := refused(r); {
	case share == 0:
		return "none"
	case share <= 0.05:
		return "few"
	case share <= 0.25:
		return "some"
	}
	return "many"
}

// perThousand returns the refusals of 1,000 requests, rounded up: only 0 refusals print as 0.
func perThousand(r Row) string {
	return strconv.FormatInt(int64(math.Ceil(1000*refused(r)-1e-9)), 10)
}
