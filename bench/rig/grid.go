package rig

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table begins a table in Markdown and returns a function that writes its next row. Each column is
// as wide as its heading. All columns but the first are aligned to the right.
func Table(w io.Writer, headings ...string) (row func(cells ...string)) {
	row = func(cells ...string) {
		line := make([]string, len(cells))
		for i, c := range cells {
			width := utf8.RuneCountInString(headings[i])
			if i == 0 {
				width = -width
			}
			line[i] = fmt.Sprintf("%*s", width, c)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(line, " | "))
	}
	row(headings...)
	rules := make([]string, len(headings))
	for i, h := range headings {
		rules[i] = strings.Repeat("-", max(3, utf8.RuneCountInString(h)-1)) + ":"
	}
	rules[0] = strings.ReplaceAll(rules[0], ":", "-")
	row(rules...)
	return row
}

// A Grid is a table that can be printed and drawn.
type Grid struct {
	Title string
	About string
	// Corner is the heading of the names of the rows, and Heads those of the two texts of a cell.
	Corner string
	Heads  [2]string
	Legend []Swatch
	Note   string
	Rows   []Name
	// Columns are the names of the columns. If Total is set, the last one is set apart.
	Columns []Name
	Total   bool
	// Cells are the cells, by the keys of row and column. Any may be missing.
	Cells map[[2]string]Cell
}

// A Name has two lines and a key. If Label is empty, it is the key. In a chart, a row that is Apart
// follows a gap.
type Name struct {
	Key, Label, Note string
	Apart            bool
}

// String returns the name in one line.
func (n Name) String() string { return strings.TrimSpace(n.first() + " " + n.Note) }

func (n Name) first() string {
	if n.Label == "" {
		return n.Key
	}
	return n.Label
}

// Names returns names that consist of their keys.
func Names(keys ...string) (names []Name) {
	for _, key := range keys {
		names = append(names, Name{Key: key})
	}
	return names
}

// A Cell has one or two texts. In a chart, a color named Class fills the part Fill of it.
type Cell struct {
	Left, Right string
	Class       string
	Fill        float64
	// Words describe the cell to screen readers. If empty, its texts do.
	Words string
}

func (c Cell) String() string {
	if c.Left == "" || c.Right == "" {
		return c.Left + c.Right
	}
	return c.Left + " / " + c.Right
}

// Markdown writes the grid as a table.
func (g *Grid) Markdown(w io.Writer) {
	lines := [][]string{{g.Corner}}
	for _, c := range g.Columns {
		lines[0] = append(lines[0], c.String())
	}
	for _, r := range g.Rows {
		line := []string{r.String()}
		for _, c := range g.Columns {
			line = append(line, g.Cells[[2]string{r.Key, c.Key}].String())
		}
		lines = append(lines, line)
	}
	for i := range lines[0] {
		width := 4
		for _, line := range lines {
			width = max(width, utf8.RuneCountInString(line[i]))
		}
		lines[0][i] += strings.Repeat(" ", width-utf8.RuneCountInString(lines[0][i]))
	}
	row := Table(w, lines[0]...)
	for _, line := range lines[1:] {
		row(line...)
	}
}
