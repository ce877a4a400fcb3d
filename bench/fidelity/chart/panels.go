package chart

const (
	panelTop   = 104
	panelGap   = 22
	panelWidth = (width - 2*margin - 2*panelGap) / 3.0
	barWidth   = 34
	barHeight  = 90  // for 100 %
	axisTop    = 152 // from the top of a panel
	axisHeight = 36
)

// panels draws a small chart for each client. In each column one bar rises to the utilization
// and another falls to the share of refusals, on the same scale.
func (t *table) panels() string {
	if len(t.results) == 0 {
		return ""
	}
	c := newCanvas(t)
	x := c.swatch("none", margin, 84, "upward: share of the limit used")
	c.swatch("many", x, 84, "downward: share of the requests refused")
	maxRefused := 0.0
	for _, r := range t.results {
		maxRefused = max(maxRefused, refused(r))
	}
	height := axisTop + axisHeight + barHeight*maxRefused + 40
	for i, row := range t.rows {
		t.panel(c, margin+float64(i%3)*(panelWidth+panelGap), panelTop+float64(i/3)*height, row)
	}
	return c.svg(panelTop + float64((len(t.rows)+2)/3)*height)
}

func (t *table) panel(c *canvas, x, y float64, n name) {
	c.text("name", x, y+16, truncate(n.label, panelWidth))
	c.text("note", x, y+32, truncate(n.note, panelWidth))
	c.rect("line", x, y+axisTop, panelWidth, 1)
	c.rect("line", x, y+axisTop+axisHeight, panelWidth, 1)
	w := panelWidth / float64(len(t.columns))
	for i, column := range t.columns {
		middle := x + (float64(i)+0.5)*w
		c.text("note middle", middle, y+axisTop+15, truncate(column.label, w))
		c.text("note middle", middle, y+axisTop+30, truncate(column.note, w))
		if r, ok := t.results[cell{n.key, column.key}]; ok {
			bars(c, middle, y, r)
		}
	}
}

func bars(c *canvas, middle, y float64, r Row) {
	x, top, bottom := middle-barWidth/2, y+axisTop, y+axisTop+axisHeight+1
	up, down := barHeight*min(1, r.Utilization), barHeight*refused(r)
	c.rect("none", x, top-up, barWidth, up)
	c.text("middle", middle, top-up-5, used(r))
	c.rect("many", x, bottom, barWidth, down)
	c.text("middle", middle, bottom+down+14, percent(refused(r)))
}
