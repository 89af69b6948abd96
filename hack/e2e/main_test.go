package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const report = `[{"SpecReports": [
  {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed", "RunTime": 1000000000},
  {"ContainerHierarchyTexts": ["[sig-network] Netpol", "between"], "LeafNodeText": "should allow", "LeafNodeType": "It", "State": "passed", "RunTime": 4200000000},
  {"ContainerHierarchyTexts": ["[sig-network] Netpol"], "LeafNodeText": "should deny", "LeafNodeType": "It", "State": "failed", "RunTime": 9000000000,
   "Failure": {"Message": "Had 1 wrong results\nmore"}},
  {"ContainerHierarchyTexts": ["[sig-network] Netpol [Feature:SCTPConnectivity]"], "LeafNodeText": "should", "LeafNodeType": "It", "State": "skipped"},
  {"ContainerHierarchyTexts": ["[sig-network] Services [Feature:SCTPConnectivity]"], "LeafNodeText": "should", "LeafNodeType": "It", "State": "skipped"},
  {"ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should", "LeafNodeType": "It", "State": "skipped"}]}]`

func readReport(t *testing.T, text string) []spec {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	specs, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	return specs
}

func TestTable(t *testing.T) {
	cannot := map[string]string{`\[Feature:SCTPConnectivity\]`: "no SCTP"}
	o := options{focus: policies}
	var out bytes.Buffer
	ok, err := o.table(&out, readReport(t, report), cannot, 90*time.Second)
	if ok || err != nil {
		t.Errorf("a failed spec is a success (%v)", err)
	}
	want := `
RESULT      TIME  SPEC
cannot         -  [sig-network] Netpol [Feature:SCTPConnectivity] should
ok          4.2s  [sig-network] Netpol between should allow
FAILED      9.0s  [sig-network] Netpol should deny
                  Had 1 wrong results
                  more

1 of 2 passed in 1m30s; 1 can't run on this machine: no SCTP
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}

	good := strings.Replace(report, `"failed"`, `"passed"`, 1)
	if ok, err := o.table(&out, readReport(t, good), cannot, time.Second); !ok || err != nil {
		t.Errorf("all passed: %t, %v", ok, err)
	}
	if ok, err := o.table(&out, readReport(t, strings.ReplaceAll(good, `"passed"`, `"skipped"`)), cannot, time.Second); ok || err == nil {
		t.Errorf("a run without specs: %t, %v", ok, err)
	}
	// The suite can fail without a spec that does.
	spoilt := strings.Replace(good, `"SynchronizedBeforeSuite", "State": "passed"`, `"SynchronizedBeforeSuite", "State": "panicked"`, 1)
	if ok, _ := o.table(&out, readReport(t, spoilt), cannot, time.Second); ok {
		t.Error("a run whose preparation failed is a success")
	}
}

func TestPatterns(t *testing.T) {
	specs := map[string]bool{ // whether they are in the smoke run
		"[sig-network] Netpol API should support creating NetworkPolicy API operations":                                                                       true,
		"[sig-network] Netpol NetworkPolicy between server and client should support allow-all policy [Feature:NetworkPolicy]":                                true,
		"[sig-network] Netpol NetworkPolicy between server and client should support a 'default-deny-all' policy [Feature:NetworkPolicy]":                     true,
		"[sig-network] Netpol [LinuxOnly] NetworkPolicy between server and client using UDP should support a 'default-deny-ingress' policy":                   true,
		"[sig-network] Netpol NetworkPolicy between server and client should support a 'default-deny-ingress' policy [Feature:NetworkPolicy]":                 false,
		"[sig-network] Netpol NetworkPolicy between server and client should stop enforcing policies after they are deleted [Feature:NetworkPolicy]":          true,
		"[sig-network] Netpol NetworkPolicy between server and client should allow egress access to server in CIDR block [Feature:NetworkPolicy]":             true,
		"[sig-network] Netpol [Feature:SCTPConnectivity] [LinuxOnly] NetworkPolicy between server and client using SCTP should enforce policy based on Ports": false,
	}
	for name, small := range specs {
		if !regexp.MustCompile(policies).MatchString(name) {
			t.Errorf("not in the whole: %s", name)
		}
		if regexp.MustCompile(smoke).MatchString(name) != small {
			t.Errorf("in the smoke run is not %t: %s", small, name)
		}
	}
}
