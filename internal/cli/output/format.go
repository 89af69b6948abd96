// Package output shows answers: to people as tables and lists, in colour where there is a terminal,
// and to programs as JSON, YAML or a JSONPath template.
//
// It knows neither commands nor what they ask. Nothing that it shows to people changes the
// terminal: labels and names come from users of the cluster.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Format is the value of the flag --output. The zero value is the table for people.
type Format struct {
	text     string
	yaml     bool
	json     bool
	template *pathTemplate
}

// AddFlag gives cmd the flag -o and returns its value.
func AddFlag(cmd *cobra.Command) *Format {
	o := &Format{}
	cmd.Flags().VarP(o, "output", "o", "json, yaml or jsonpath='{.field}' instead of a table")
	// The only error is an unknown flag name.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]cobra.Completion{"json", "yaml", "jsonpath="}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return o
}

// String is the flag's text.
func (o *Format) String() string { return o.text }

// Type names the value in the help.
func (o *Format) Type() string { return "format" }

// Set parses the flag's text.
func (o *Format) Set(text string) error {
	*o = Format{text: text}
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

// Print writes data in the chosen format, or calls people if none was chosen.
func (o *Format) Print(w io.Writer, data any, people func(w io.Writer) error) error {
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

// PrintNext is Print for one item of a stream: JSON on a line of its own, YAML as a document of its
// own.
func (o *Format) PrintNext(w io.Writer, data any, people func(w io.Writer) error) error {
	switch {
	case o.json:
		return json.NewEncoder(w).Encode(data)
	case o.yaml:
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
	}
	return o.Print(w, data, people)
}
