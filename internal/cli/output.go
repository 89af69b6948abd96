package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// output is the value of the flag --output. The zero value is the table for people.
type output struct {
	text     string
	yaml     bool
	json     bool
	template *pathTemplate
}

// addOutput gives cmd the flag -o and returns its value.
func addOutput(cmd *cobra.Command) *output {
	o := &output{}
	cmd.Flags().VarP(o, "output", "o", "json, yaml or jsonpath='{.field}' instead of a table")
	// The only error is an unknown flag name.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]cobra.Completion{"json", "yaml", "jsonpath="}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return o
}

// String is the flag's text.
func (o *output) String() string { return o.text }

// Type names the value in the help.
func (o *output) Type() string { return "format" }

// Set parses the flag's text.
func (o *output) Set(text string) error {
	*o = output{text: text}
	switch {
	case text == "json":
		o.json = true
	case text == "yaml":
		o.yaml = true
	case strings.HasPrefix(text, "jsonpath="):
		t, err := parsePathTemplate(strings.TrimPrefix(text, "jsonpath="))
		if err != nil {
			return err
		}
		o.template = t
	default:
		return fmt.Errorf("want json, yaml or jsonpath='{.field}'")
	}
	return nil
}

// print writes data in the chosen format, or calls people if none was chosen.
func (o *output) print(w io.Writer, data any, people func(w io.Writer) error) error {
	switch {
	case o.json:
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(data)
	case o.yaml:
		b, err := yaml.Marshal(data)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	case o.template != nil:
		return o.template.execute(w, data)
	}
	var buf bytes.Buffer
	if err := people(&buf); err != nil {
		return err
	}
	_, err := buf.WriteTo(w)
	return err
}

// style is how a cell is shown on a terminal.
type style uint8

const (
	plain style = iota
	bold
	good
	warn
	bad
)

// sgr are the terminal's codes of the styles.
func (s style) sgr() string {
	switch s {
	case bold:
		return "1"
	case good:
		return "32"
	case warn:
		return "33"
	case bad:
		return "31"
	}
	return ""
}

// paint returns text in a style if there is colour.
func (a *app) paint(s style, text string) string {
	if !a.colour || s == plain || text == "" {
		return text
	}
	return "\x1b[" + s.sgr() + "m" + text + "\x1b[0m"
}

// cell is one field of a table; its text may have several lines.
type cell struct {
	text  string
	style style
}

// table is rows in columns as wide as their widest cell, three spaces apart.
type table struct {
	app    *app
	header []string // a header of several lines has newlines
	rows   [][]cell
	first  int // least width of the first column, which aligns tables that follow each other
}

func (a *app) table(header ...string) *table { return &table{app: a, header: header} }

// row adds a row. A value is a cell, a list of lines, or anything fmt prints.
func (t *table) row(values ...any) {
	cells := make([]cell, len(values))
	for i, v := range values {
		switch v := v.(type) {
		case cell:
			cells[i] = v
		case []string:
			cells[i].text = strings.Join(v, "\n")
		case string:
			cells[i].text = v
		default:
			cells[i].text = fmt.Sprint(v)
		}
	}
	t.rows = append(t.rows, cells)
}

// write prints the table without blanks at the ends of lines.
func (t *table) write(w io.Writer) error {
	rows := t.rows
	if t.header != nil {
		head := make([]cell, len(t.header))
		for i, h := range t.header {
			head[i] = cell{h, bold}
		}
		rows = append([][]cell{head}, rows...)
	}
	width := []int{t.first}
	lines := make([][][]string, len(rows)) // row, column, line
	for r, row := range rows {
		lines[r] = make([][]string, len(row))
		for c, cell := range row {
			lines[r][c] = strings.Split(cell.text, "\n")
			if c == len(width) {
				width = append(width, 0)
			}
			for l, text := range lines[r][c] {
				lines[r][c][l] = printable(text)
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
					b.WriteString(t.app.paint(cell.style, text))
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

// printable replaces what would move the cursor or change the terminal: labels and names come
// from users of the cluster.
func printable(s string) string {
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

// facts is a list of names with values, as an object is shown to people.
type facts struct{ t *table }

func (a *app) facts() facts { return facts{a.table()} }

// add adds a line unless the value is empty.
func (f facts) add(name string, value any) {
	switch v := value.(type) {
	case string:
		if v == "" {
			return
		}
	case []string:
		if len(v) == 0 {
			return
		}
	case cell:
		if v.text == "" {
			return
		}
	}
	f.t.row(name+":", value)
}

func (f facts) write(w io.Writer) error { return f.t.write(w) }
