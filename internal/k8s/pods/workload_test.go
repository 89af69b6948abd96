package pods_test

import (
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/k8s/pods"
)

// TestWorkloadByLabels: what made a pod is named if its name and the labels of the controller
// agree, and no workload is named otherwise.
func TestWorkloadByLabels(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 58)
	for _, row := range []struct {
		pod, key, value string
		want            pods.Workload
	}{
		{"shop-web-7d4b9c-x2x9z", "pod-template-hash", "7d4b9c", pods.Workload{Kind: "Deployment", Name: "shop-web"}},
		{"shop-web-7d4b9c-x2x9z", "pod-template-hash", "other", pods.Workload{}},
		{"7d4b9c-x2x9z", "pod-template-hash", "7d4b9c", pods.Workload{}},
		{"-7d4b9c-x2x9z", "pod-template-hash", "7d4b9c", pods.Workload{}},
		{"web-7d4b9c", "pod-template-hash", "7d4b9c", pods.Workload{}}, // a pod by hand
		{"db-0", "statefulset.kubernetes.io/pod-name", "db-0", pods.Workload{Kind: "StatefulSet", Name: "db"}},
		{"db-12", "statefulset.kubernetes.io/pod-name", "db-0", pods.Workload{}},
		{"db-x", "statefulset.kubernetes.io/pod-name", "db-x", pods.Workload{}},
		{"-0", "statefulset.kubernetes.io/pod-name", "-0", pods.Workload{}},
		{"backup-x2x9z", "batch.kubernetes.io/job-name", "backup", pods.Workload{Kind: "Job", Name: "backup"}},
		{"backup-3-x2x9z", "batch.kubernetes.io/job-name", "backup", pods.Workload{Kind: "Job", Name: "backup"}}, // an indexed one
		{"other-x2x9z", "batch.kubernetes.io/job-name", "backup", pods.Workload{}},
		{"log-agent-x2x9z", "pod-template-generation", "1", pods.Workload{Kind: "DaemonSet", Name: "log-agent"}},
		{"log-agent-x-9z", "pod-template-generation", "1", pods.Workload{}},
		{"x2x9z", "pod-template-generation", "1", pods.Workload{}},
		{long[:56] + "-x2x9z", "pod-template-generation", "1", pods.Workload{Kind: "DaemonSet", Name: long[:56]}},
		{long[:57] + "-x2x9z", "pod-template-generation", "1", pods.Workload{}}, // it may have been cut
		{long + "x2x9z", "pod-template-generation", "1", pods.Workload{}},       // it was
		{"web-7d4b9c-x2x9z", "app", "web", pods.Workload{}},
		{"web-7d4b9c-x2x9z", "", "", pods.Workload{}},
		{"", "statefulset.kubernetes.io/pod-name", "", pods.Workload{}},
	} {
		if got := pods.WorkloadByLabels(row.pod, map[string]string{row.key: row.value}); got != row.want {
			t.Errorf("%s with %s=%s is made by %+v, want %+v", row.pod, row.key, row.value, got, row.want)
		}
	}
}
