package pods

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload is the controller of a pod, such as a Deployment; the pod itself, if it has none. It is
// the zero value if that is not known.
type Workload struct{ Kind, Name string }

// workloadOf returns what made a pod. A ReplicaSet that a Deployment made has its name and the hash
// of its template; a creator of pods can forge that, so that it is for display only.
func workloadOf(o *corev1.Pod) Workload {
	owner := metav1.GetControllerOf(o)
	if owner == nil {
		return Workload{"Pod", o.Name}
	}
	hash := o.Labels[labelTemplateHash]
	if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" && owner.Kind == "ReplicaSet" {
		return Workload{"Deployment", name}
	}
	return Workload{owner.Kind, owner.Name}
}

// Labels that the controllers of Kubernetes give to the pods that they make.
const (
	labelTemplateHash       = "pod-template-hash"                  // a Deployment's, by its ReplicaSet
	labelTemplateGeneration = "pod-template-generation"            // a DaemonSet's
	labelStatefulPod        = "statefulset.kubernetes.io/pod-name" // a StatefulSet's: the pod's own name
	labelJob                = "batch.kubernetes.io/job-name"
)

// What the API server makes of metadata.generateName: a name of at most maxGenerated characters of
// it, and as many random ones as randomLength.
const (
	maxGenerated = 58
	randomLength = 5
)

// WorkloadByLabels returns what made a pod, by its name and labels: for pods of which nothing else
// is known, such as those of other nodes. It is the zero value unless both agree, as with names so
// long that they were cut. A creator of pods can forge that, so that it is for display only.
func WorkloadByLabels(pod string, labels map[string]string) Workload {
	if labels[labelStatefulPod] == pod {
		if i := strings.LastIndexByte(pod, '-'); i > 0 && isNumber(pod[i+1:]) {
			return Workload{"StatefulSet", pod[:i]}
		}
	}
	if job := labels[labelJob]; job != "" && strings.HasPrefix(pod, job+"-") {
		return Workload{"Job", job}
	}
	generated := len(pod) - randomLength // the length of what was not random
	if generated < 2 || generated > maxGenerated || pod[generated-1] != '-' || strings.ContainsRune(pod[generated:], '-') {
		return Workload{}
	}
	name := pod[:generated-1]
	if hash := labels[labelTemplateHash]; hash != "" {
		if deployment, ok := strings.CutSuffix(name, "-"+hash); ok && deployment != "" {
			return Workload{"Deployment", deployment}
		}
		return Workload{}
	}
	if labels[labelTemplateGeneration] != "" && generated < maxGenerated {
		return Workload{"DaemonSet", name}
	}
	return Workload{}
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
