package archtest

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPermissions: the policies that docs/user/ipam.md has people grant allow what the operator
// calls of each cloud, and nothing else.
func TestPermissions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/user/ipam.md")
	if err != nil {
		t.Fatal(err)
	}
	vpc := []string{"DescribeVSwitches", "DescribeVpcs"} // the other actions of Alibaba Cloud are those of ECS
	for _, c := range []struct {
		section, dir string
		calls        *regexp.Regexp
		permission   func(call string) string
		// implied are asked for by what is in a call: tags, and what an interface refers to.
		implied []string
	}{
		{"eni", "aws", regexp.MustCompile(`call\(ctx, p, "(\w+)"`), func(call string) string { return "ec2:" + call }, []string{"ec2:CreateTags"}},
		{
			"azure", "azure", regexp.MustCompile(`"(Microsoft\.\w+/[\w/]+)"`), func(call string) string { return call },
			[]string{"Microsoft.Network/virtualNetworks/subnets/join/action", "Microsoft.Network/networkSecurityGroups/join/action"},
		},
		{"alibabacloud", "alibaba", regexp.MustCompile(`p\.(?:call|pages)\(ctx, "(\w+)"`), func(call string) string {
			if slices.Contains(vpc, call) {
				return "vpc:" + call
			}
			return "ecs:" + call
		}, []string{"ecs:TagResources"}},
	} {
		want := map[string]bool{}
		for _, p := range c.implied {
			want[p] = true
		}
		files, err := filepath.Glob("../operator/nodemanager/" + c.dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range c.calls.FindAllSubmatch(text, -1) {
				want[c.permission(string(m[1]))] = true
			}
		}
		if got := granted(t, string(page), c.section); len(want) < len(c.implied)+5 || !slices.Equal(got, slices.Sorted(maps.Keys(want))) {
			t.Errorf("section %s of docs/user/ipam.md grants\n%q\nand the operator needs\n%q", c.section, got, slices.Sorted(maps.Keys(want)))
		}
	}
}

// granted are the permissions of the policy in a section of a page.
func granted(t *testing.T, page, section string) []string {
	t.Helper()
	_, text, _ := strings.Cut(page, "\n## "+section+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	_, text, _ = strings.Cut(text, "```json\n")
	text, _, _ = strings.Cut(text, "```")
	var policy struct {
		Actions   []string
		Statement []struct{ Action []string }
	}
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		t.Fatalf("the policy of section %s: %v", section, err)
	}
	for _, s := range policy.Statement {
		policy.Actions = append(policy.Actions, s.Action...)
	}
	return slices.Sorted(slices.Values(policy.Actions))
}
