package labels

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// DefaultFilterRules returns the rules that apply without --labels and --label-prefix-file. Those
// with "!" exclude.
func DefaultFilterRules() []string {
	return []string{
		`reserved:.*`,
		`io\.kubernetes\.pod\.namespace`,
		`io\.cilium\.k8s\.namespace\.labels`,
		`app\.kubernetes\.io`,
		`io\.cilium\.k8s\.policy\.cluster`,
		`io\.cilium\.k8s\.policy\.serviceaccount`,
		`!io\.kubernetes`,
		`!kubernetes\.io`,
		`!statefulset\.kubernetes\.io/pod-name`,
		`!apps\.kubernetes\.io/pod-index`,
		`!batch\.kubernetes\.io/job-completion-index`,
		`!batch\.kubernetes\.io/controller-uid`,
		`!.*beta\.kubernetes\.io`,
		`!k8s\.io`,
		`!pod-template-generation`,
		`!pod-template-hash`,
		`!controller-revision-hash`,
		`!controller-uid`,
		`!annotation.*`,
		`!etcd_node`,
		`!topology\.kubernetes\.io`,
	}
}

// Filter separates identity labels from information labels. Make one with NewFilter. It is
// immutable and safe for concurrent use.
type Filter struct {
	rules []filterRule
	// whitelist: labels to include were configured, so that all others are left out.
	whitelist bool
	// keys are those that count for Split; see Narrow.
	keys Keys
}

type filterRule struct {
	source string         // "" is any
	ignore bool           // "!": exclude what matches
	re     *regexp.Regexp // nil: prefix is compared as text
	prefix string
}

// NewFilter builds the filter from the --labels entries and the content of the --label-prefix-file
// (nil if there is none), which replaces the default rules. Entries are added to the default rules
// or to those of the file. An entry is "[source:][!]expression"; it applies to keys that the
// regular expression matches from their first byte on.
func NewFilter(entries []string, prefixFile []byte) (*Filter, error) {
	f := &Filter{keys: AllKeys()}
	if prefixFile != nil {
		if err := f.addFile(prefixFile); err != nil {
			return nil, err
		}
	} else {
		for _, e := range DefaultFilterRules() {
			r, err := parseFilterRule(e)
			if err != nil {
				return nil, err
			}
			f.rules = append(f.rules, r)
		}
	}
	var errs []error
	for _, e := range entries {
		r, err := parseFilterRule(e)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.rules = append(f.rules, r)
		f.whitelist = f.whitelist || !r.ignore
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return f, nil
}

// DefaultFilter returns the filter of the default rules.
func DefaultFilter() *Filter {
	f, err := NewFilter(nil, nil)
	if err != nil {
		panic(err) // the rules are constants, compiled by the tests
	}
	return f
}

// prefixFile is the format of --label-prefix-file.
type prefixFile struct {
	Version       int `json:"version"`
	ValidPrefixes []struct {
		Invert bool   `json:"invert"`
		Prefix string `json:"prefix"`
		Source string `json:"source"`
	} `json:"valid-prefixes"`
}

func (f *Filter) addFile(data []byte) error {
	var pf prefixFile
	if err := json.Unmarshal(data, &pf); err != nil {
		return fmt.Errorf("label prefix file: %w", err)
	}
	if pf.Version != 1 {
		return fmt.Errorf("label prefix file: version %d is not known, write version 1", pf.Version)
	}
	for i, p := range pf.ValidPrefixes {
		if p.Prefix == "" {
			return fmt.Errorf("label prefix file: valid-prefixes[%d] has no prefix", i)
		}
		f.rules = append(f.rules, filterRule{source: p.Source, ignore: p.Invert, prefix: p.Prefix})
		f.whitelist = f.whitelist || !p.Invert
	}
	return nil
}

func parseFilterRule(entry string) (filterRule, error) {
	r := filterRule{}
	expr := entry
	if source, rest, ok := strings.Cut(entry, ":"); ok {
		r.source, expr = source, rest
	}
	if strings.HasPrefix(r.source, "!") {
		return r, fmt.Errorf("label filter %q: write the exclamation mark after the source", clip(entry))
	}
	if rest, ok := strings.CutPrefix(expr, "!"); ok {
		r.ignore, expr = true, rest
	}
	if expr == "" {
		return r, fmt.Errorf("label filter %q: the expression is empty", clip(entry))
	}
	if len(expr) > MaxKeyLen {
		return r, fmt.Errorf("label filter %q: the expression is longer than %d bytes", clip(entry), MaxKeyLen)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return r, fmt.Errorf("label filter %q: %w", clip(entry), err)
	}
	r.re = re
	return r, nil
}

// matchLen returns how many leading bytes of the key the rule matches, 0 if it does not.
func (r *filterRule) matchLen(l Label) int {
	if r.source != "" && r.source != l.Source {
		return 0
	}
	if r.re == nil {
		if strings.HasPrefix(l.Key, r.prefix) {
			return len(r.prefix)
		}
		return 0
	}
	loc := r.re.FindStringIndex(l.Key)
	if loc == nil || loc[0] != 0 {
		return 0
	}
	return loc[1]
}

// Identity reports whether the label is part of an identity: its longest including match is longer
// than its shortest excluding one, or nothing excludes it and no list of inclusions was given.
// Whether its key was chosen (Narrow) does not matter here.
func (f *Filter) Identity(l Label) bool {
	included, ignored := 0, 0
	for i := range f.rules {
		n := f.rules[i].matchLen(l)
		if n == 0 {
			continue
		}
		if f.rules[i].ignore {
			if ignored == 0 || n < ignored {
				ignored = n
			}
		} else {
			included = max(included, n)
		}
	}
	return (!f.whitelist && ignored == 0) || included > ignored
}

// Split divides the set into the labels that make the identity and those that only inform.
func (f *Filter) Split(s Set) (identity, info Set) {
	for _, l := range s {
		if f.Identity(l) {
			identity = append(identity, l)
		} else {
			info = append(info, l)
		}
	}
	if some := f.keys.Project(identity); len(some) < len(identity) {
		return some, s.Without(func(l Label) bool { return some.Has(l.Source, l.Key) })
	}
	return identity, info
}

// Fingerprint returns a short hash of the rules of a filter: equal rules have the same one, others
// different ones. The keys of [Filter.Narrow] are not part of it.
func (f *Filter) Fingerprint() string {
	var rules []string
	for _, r := range f.rules {
		kind, expression := "prefix", r.prefix
		if r.re != nil {
			kind, expression = "expression", r.re.String()
		}
		rules = append(rules, fmt.Sprintf("%q %t %s %q", r.source, r.ignore, kind, expression))
	}
	slices.Sort(rules) // their order does not matter, but how often one is there does
	sum := sha256.Sum256(fmt.Appendf(nil, "%t\n%s", f.whitelist, strings.Join(rules, "\n")))
	return hex.EncodeToString(sum[:8])
}
