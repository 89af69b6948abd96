package flowmetrics

import (
	"fmt"
	"slices"
	"strings"
)

// Metric is one metric that was asked for.
type Metric struct {
	kind *kind
	contexts
}

// Name is what the metric is called in the option, such as "drop".
func (m Metric) Name() string { return m.kind.name }

// Parse reads a list of metrics: names that are separated by spaces, each with options after a
// colon, such as
//
//	drop flow:sourceContext=workload|ip;labelsContext=source_namespace,destination_namespace
//
// Names without options may be separated by commas, too. What it does not know is an error.
func Parse(list string) (out []Metric, err error) {
	for word := range strings.FieldsSeq(list) {
		head, options, _ := strings.Cut(word, ":")
		group := strings.Split(head, ",")
		for i, name := range group {
			own := ""
			if i == len(group)-1 {
				own = options
			}
			m, err := parseMetric(name, own)
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(out, func(o Metric) bool { return o.kind == m.kind }) {
				return nil, fmt.Errorf("metric %q is listed twice", name)
			}
			out = append(out, m)
		}
	}
	return out, nil
}

// unseen are metrics of Hubble that count what flows here do not contain.
var unseen = []string{"dns", "http", "httpV2", "kafka"}

func parseMetric(name, options string) (m Metric, err error) {
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if at < 0 {
		if slices.Contains(unseen, name) {
			return m, fmt.Errorf("metric %q counts layer 7, of which no flows are recorded: leave it out", name)
		}
		return m, fmt.Errorf("metric %q is none of %s", name, names(kinds, func(k kind) string { return k.name }))
	}
	m.kind = &kinds[at]
	for option := range strings.SplitSeq(options, ";") {
		if option == "" {
			continue
		}
		key, value, _ := strings.Cut(option, "=")
		if err := m.set(key, value); err != nil {
			return m, fmt.Errorf("metric %q: %w", name, err)
		}
	}
	return m, nil
}

// set reads one option. Its name may be written in any case, as in the field.
func (c *contexts) set(key, value string) (err error) {
	var into *[]view
	switch strings.ToLower(key) {
	case "sourcecontext":
		into = &c.source.any
	case "sourceingresscontext":
		into = &c.source.ingress
	case "sourceegresscontext":
		into = &c.source.egress
	case "destinationcontext":
		into = &c.destination.any
	case "destinationingresscontext":
		into = &c.destination.ingress
	case "destinationegresscontext":
		into = &c.destination.egress
	case "labelscontext":
		if c.labels != nil {
			return fmt.Errorf("option %q is listed twice", key)
		}
		for name := range strings.SplitSeq(value, ",") {
			at := slices.IndexFunc(labels, func(l label) bool { return l.name == name })
			switch {
			case at < 0:
				return fmt.Errorf("%s: %q is none of %s", key, name, names(labels, func(l label) string { return l.name }))
			case slices.Contains(c.labels, at):
				return fmt.Errorf("%s: %q is listed twice", key, name)
			}
			c.labels = append(c.labels, at)
		}
		return nil
	default:
		return fmt.Errorf("option %q is none of sourceContext, sourceIngressContext, sourceEgressContext, destinationContext, "+
			"destinationIngressContext, destinationEgressContext, labelsContext", key)
	}
	if *into != nil {
		return fmt.Errorf("option %q is listed twice", key)
	}
	if *into, err = parseViews(value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func parseViews(value string) (out []view, err error) {
	for name := range strings.SplitSeq(value, "|") {
		at := slices.IndexFunc(views, func(v view) bool { return v.name == strings.ToLower(name) })
		if at < 0 {
			return nil, fmt.Errorf("%q is none of %s", name, names(views, func(v view) string { return v.name }))
		}
		out = append(out, views[at])
	}
	return out, nil
}

func names[T any](list []T, name func(T) string) string {
	var out []string
	for _, x := range list {
		out = append(out, name(x))
	}
	return strings.Join(out, ", ")
}
