package output

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// TimeFormat is how times are shown to people, in the zone in which they were given.
const TimeFormat = "2006-01-02 15:04:05Z07:00"

// Style is how text is shown on a terminal.
type Style uint8

// Styles. The zero value is text as it stands.
const (
	Plain Style = iota
	Bold
	Good
	Warn
	Bad
)

// Cell returns a field of a table in this style.
func (s Style) Cell(text string) Cell { return Cell{text, s} }

// sgr are the terminal's codes of the styles.
func (s Style) sgr() string {
	switch s {
	case Bold:
		return "1"
	case Good:
		return "32"
	case Warn:
		return "33"
	case Bad:
		return "31"
	}
	return ""
}

// Terminal is where answers are shown to people.
type Terminal struct {
	// Colour means that styles are shown.
	Colour bool
}

// Paint returns text in a style if there is colour.
func (t Terminal) Paint(s Style, text string) string {
	if !t.Colour || s == Plain || text == "" {
		return text
	}
	return "\x1b[" + s.sgr() + "m" + text + "\x1b[0m"
}

// Cell is one field of a table; its text may have several lines.
type Cell struct {
	Text  string
	Style Style
}

// Table is rows in columns as wide as their widest cell, three spaces apart. What would change the
// terminal is shown as [Printable] has it.
type Table struct {
	// Header is the first line; one of several lines has newlines. Without a header there is none.
	Header []string
	// First is the least width of the first column, which aligns tables that follow each other.
	First int

	terminal Terminal
	rows     [][]Cell
}

// Table returns a table without rows.
func (t Terminal) Table(header ...string) *Table { return &Table{Header: header, terminal: t} }

// Row adds a row. A value is a Cell, a list of lines, or anything fmt prints.
func (t *Table) Row(values ...any) {
	cells := make([]Cell, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case Cell:
			cells[i] = v
		case []string:
			cells[i].Text = strings.Join(v, "\n")
		case string:
			cells[i].Text = v
		default:
			cells[i].Text = fmt.Sprint(v)
		}
	}
	t.rows = append(t.rows, cells)
}

// Len returns how many rows there are.
func (t *Table) Len() int { return len(t.rows) }

// Clear removes the rows.
func (t *Table) Clear() { t.rows = nil }

// WriteAfterBlank prints an empty line, then the table.
func (t *Table) WriteAfterBlank(w io.Writer) error {
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return t.Write(w)
}

// Write prints the table without blanks at the ends of lines.
func (t *Table) Write(w io.Writer) error {
	rows := t.rows
	if t.Header != nil {
		head := make([]Cell, len(t.Header))
		for i, h := range t.Header {
			head[i] = Bold.Cell(h)
		}
		rows = append([][]Cell{head}, rows...)
	}
	width := []int{t.First}
	lines := make([][][]string, len(rows)) // row, column, line
	for r, row := range rows {
		lines[r] = make([][]string, len(row))
		for c, cell := range row {
			lines[r][c] = strings.Split(cell.Text, "\n")
			if c == len(width) {
				width = append(width, 0)
			}
			for l, text := range lines[r][c] {
				lines[r][c][l] = Printable(text)
				width[c] = max(width[c], utf8.RuneCountInString(lines[r][c][l]))
			}
		}
	}
	var b strings.Builder
	for r, row := range rows {
		height := 1
		for c := range row {
			height = max(height, len(lines[r][c]))
		}
		for l := range height {
			pad := 0
			for c, cell := range row {
				text := ""
				if l < len(lines[r][c]) {
					text = lines[r][c][l]
				}
				if text != "" {
					b.WriteString(strings.Repeat(" ", pad))
					b.WriteString(t.terminal.Paint(cell.Style, text))
					pad = 0
				}
				pad += width[c] - utf8.RuneCountInString(text) + 3
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Printable replaces what would move the cursor or change the terminal: labels and names come
// from users of the cluster.
func Printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// Facts is a list of names with values, as an object is shown to people.
type Facts struct{ table *Table }

// Facts returns an empty list.
func (t Terminal) Facts() Facts { return Facts{t.Table()} }

// Add adds a line unless the value is empty.
func (f Facts) Add(name string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	case Cell:
		if v.Text == "" {
			return
		}
	}
	f.table.Row(name+":", value)
}

// Write prints the list.
func (f Facts) Write(w io.Writer) error { return f.table.Write(w) }
