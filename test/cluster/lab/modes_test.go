package lab

import (
	"strings"
	"testing"
)

func TestModes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		modes Modes
		err   string   // of Validate
		want  []string // in the values of the chart
	}{
		{NewModes(), "", []string{"managementMode: agent", "allocationMode: crd", "enabled: false", "extraArgs: []"}},
		{Modes{"operator", "slim", "objects", ""}, "", []string{"managementMode: operator", "enabled: true", "mode: slim"}},
		{Modes{"mixed", "slices", "objects", ""}, "", []string{"managementMode: both", `extraArgs: ["--identity-management-mode=agent"]`, "enabled: true", "mode: default"}},
		{Modes{"both", "objects", "consul", ""}, "", []string{"managementMode: both", "allocationMode: kvstore"}},
		{Modes{"agent", "slim", "objects", ""}, "-endpoints slim needs -identities operator", nil},
		{Modes{"agent", "slices", "etcd", ""}, "-endpoints slices needs -store objects", nil},
		{Modes{"unknown", "nothing", "nowhere", ""}, "-store \"nowhere\": want objects, etcd, consul", nil},
	} {
		err := tt.modes.Validate()
		if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%v: error %v, want %q", tt.modes, err, tt.err)
		}
		for _, want := range tt.want {
			if values := tt.modes.values(nil); !strings.Contains(values, want) {
				t.Errorf("%v: the values lack %q:%s", tt.modes, want, values)
			}
		}
	}
}
