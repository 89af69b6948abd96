package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// generated are the pages of the manual that are made from the programs, or compared with them, by
// tests of these.
var generated = []string{"cli.md", "hawser-agent.md", "hawser-operator.md", "hawser-relay.md"}

// ofOthers are options in the manual that other programs have.
var ofOthers = map[string][]string{
	"kubectl": {"delete-emptydir-data", "field-selector", "for", "from-file", "from-literal", "ignore-daemonsets", "image", "previous", "replicas", "subresource", "tail", "target-port"},
	"helm":    {"set", "set-string", "values", "wait"},
	"etcd":    {"auto-compaction-retention", "bump-revision", "mark-compacted", "quota-backend-bytes"},
	"kubeadm, kube-controller-manager and kube-proxy": {"allocate-node-cidrs", "cleanup", "cluster-cidr", "node-cidr-mask-size", "pod-network-cidr"},
	"aws, ctr and nsenter":                            {"local", "net", "tag-specifications"},
	"Cilium":                                          {"bpf-lb-dsr-dispatch"}, // the page says that there is none here
}

// manual returns the lines of the pages of the manual, by page.
func manual(t *testing.T) map[string][]string {
	t.Helper()
	const root = "../.."
	list, err := filepath.Glob(filepath.Join(root, "docs/user/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, path := range append(list, filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"), filepath.Join(root, "SECURITY.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(path)] = strings.Split(string(text), "\n")
	}
	return out
}

// code returns what a line says in the type of programs: spans, or all of it inside of a block.
func code(line string, block bool) []string {
	if block || strings.HasPrefix(line, "    ") {
		return []string{line}
	}
	var out []string
	for i, part := range strings.Split(line, "`") {
		if i%2 == 1 {
			out = append(out, part)
		}
	}
	return out
}

// each calls f for each piece of code on each page.
func each(pages map[string][]string, f func(page string, line int, text string)) {
	for page, lines := range pages {
		block := false
		for i, line := range lines {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				block = !block
				continue
			case strings.HasPrefix(line, "<!--"), strings.HasPrefix(line, "built bin/"): // made by a program
				continue
			}
			for _, text := range code(line, block) {
				f(page, i+1, text)
			}
		}
	}
}

// TestManualNamesOptionsAndCommands: each option in the manual is one of our programs, or of
// another that is named here, and each command of hawser is there.
func TestManualNamesOptionsAndCommands(t *testing.T) {
	t.Parallel()
	pages := manual(t)
	known := map[string]bool{}
	commands, groups := map[string]bool{}, map[string]bool{}
	option := regexp.MustCompile(`--([a-z][a-z0-9-]*[a-z0-9])`)
	listed, heading := regexp.MustCompile(`^- \[(hawser [a-z -]+)\]`), regexp.MustCompile(`^## (hawser [a-z -]+)$`)
	for _, page := range generated {
		for _, line := range pages[page] {
			for _, m := range option.FindAllStringSubmatch(line, -1) {
				known[m[1]] = true
			}
			if m := listed.FindStringSubmatch(line); m != nil {
				commands[m[1]] = true
			}
			if m := heading.FindStringSubmatch(line); m != nil {
				groups[m[1]] = true
			}
		}
	}
	for _, list := range ofOthers {
		for _, name := range list {
			known[name] = true
		}
	}
	named := regexp.MustCompile(`(?:^|[^\w-])--([a-z][a-z0-9-]*[a-z0-9])(-?\*|-)?`)
	command := regexp.MustCompile(`(?:^\s*|[$(|] |-- |bin/|exit )(hawser(?: [a-z][a-z-]*)+)`)
	checked := 0
	each(pages, func(page string, line int, text string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if checked++; m[2] == "" && !known[m[1]] {
				t.Errorf("%s:%d: no program has an option --%s", page, line, m[1])
			}
		}
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			checked++
			// What follows the command are its arguments.
			words := strings.Fields(m[1])
			found := slices.ContainsFunc([]int{2, 3, 4}, func(n int) bool { return n <= len(words) && commands[strings.Join(words[:n], " ")] })
			if !found && !groups[strings.Join(words, " ")] {
				t.Errorf("%s:%d: there is no command %q", page, line, m[1])
			}
		}
	})
	if checked < 500 || len(commands) < 50 || len(known) < 300 {
		t.Errorf("%d names were checked against %d commands and %d options: the pages have another form", checked, len(commands), len(known))
	}
}

// TestManualNamesValuesAndWorkloads: each value of the chart that the manual names is in
// values.yaml, and each Deployment and DaemonSet is one of the chart.
func TestManualNamesValuesAndWorkloads(t *testing.T) {
	t.Parallel()
	const chart = "../../deploy/helm/hawser"
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	has := func(path []string) bool {
		var at any = values
		for _, key := range path {
			m, ok := at.(map[string]any)
			if !ok {
				return false
			}
			if len(m) == 0 {
				return true // whatever the user writes
			}
			if at, ok = m[key]; !ok {
				return false
			}
		}
		return true
	}
	workloads := map[string]bool{}
	templates, err := filepath.Glob(filepath.Join(chart, "templates/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	kind := regexp.MustCompile(`(?m)^kind: (?:Deployment|DaemonSet)\nmetadata:\n  name: (\S+)$`)
	for _, path := range templates {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range kind.FindAllStringSubmatch(string(text), -1) {
			workloads[m[1]] = true
		}
	}
	value := regexp.MustCompile(`(?:^|[\s,'])([a-z][A-Za-z0-9]*(?:\.[A-Za-z0-9]+)+)(?:$|[:=\s])`)
	workload := regexp.MustCompile(`\b(?:deployments?|deploy|daemonsets?|ds)/([\w-]+)(?:\s|$)`)
	other := []string{"ipam.type", "agent.log", "k8s.io"} // of a CNI configuration, a file, a namespace of containerd
	checked := 0
	each(manual(t), func(page string, line int, text string) {
		for _, m := range value.FindAllStringSubmatch(text, -1) {
			path := strings.Split(m[1], ".")
			if _, ours := values[path[0]]; !ours || slices.Contains(other, m[1]) {
				continue
			}
			if checked++; !has(path) {
				t.Errorf("%s:%d: the chart has no value %s", page, line, m[1])
			}
		}
		if page == "migrate-from-cilium.md" {
			return // those of Cilium
		}
		for _, m := range workload.FindAllStringSubmatch(text, -1) {
			if checked++; !workloads[m[1]] {
				t.Errorf("%s:%d: the chart has no Deployment or DaemonSet %s", page, line, m[1])
			}
		}
	})
	if checked < 80 || len(workloads) < 4 {
		t.Errorf("%d names were checked against the workloads %v: the pages have another form", checked, workloads)
	}
}

// TestManualNamesMetrics: each metric that a page names is in one of the tables that are compared
// with the programs.
func TestManualNamesMetrics(t *testing.T) {
	t.Parallel()
	tables := []string{"metrics.md", "hawser-operator.md", "hawser-relay.md"}
	pages := manual(t)
	known := map[string]bool{}
	row := regexp.MustCompile("^\\| `(cilium_[a-z_]+)(?:\\{([a-z_,]+)\\}(_[a-z_]+))?")
	for _, page := range tables {
		for _, line := range pages[page] {
			m := row.FindStringSubmatch(line)
			switch {
			case m == nil:
			case m[3] == "":
				known[m[1]] = true
			default:
				for part := range strings.SplitSeq(m[2], ",") {
					known[m[1]+part+m[3]] = true
				}
			}
		}
	}
	name := regexp.MustCompile(`(?:^|[^\w.])(cilium_[a-z_]+)`)
	checked := 0
	each(pages, func(page string, line int, text string) {
		if slices.Contains(tables, page) {
			return
		}
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			// A page of its own has these, which a test of the operator knows.
			if strings.HasPrefix(m[1], "cilium_operator_identity_labels_") {
				continue
			}
			if checked++; !known[m[1]] {
				t.Errorf("%s:%d: no program has a metric %s", page, line, m[1])
			}
		}
	})
	if checked < 20 || len(known) < 80 {
		t.Errorf("%d names were checked against %d metrics: the pages have another form", checked, len(known))
	}
}
