package agent

import (
	"cmp"
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/validate"
)

// Values of --pod-readiness.
const (
	readinessLoose  = "loose"
	readinessStrict = "strict"
)

// KubernetesOptions configure the use of a Kubernetes cluster.
type KubernetesOptions struct {
	// EnableK8s has the node be one of a Kubernetes cluster.
	EnableK8s      bool
	K8s            k8s.Config
	Policies       policies.Config // which kinds of policies count
	CRDWait        time.Duration
	EndpointSlices bool
	// NoEndpointObjects has no CiliumEndpoints written for this node's pods.
	NoEndpointObjects bool
	// Namespace is that of the agents and the operator; empty for "default".
	Namespace string
	// PodReadiness is loose, or strict for pods with a readiness gate to wait until the cluster is
	// notified of their identity.
	PodReadiness string
}

func kubernetesDefaults() KubernetesOptions {
	return KubernetesOptions{
		EnableK8s: k8s.InPod(), K8s: k8s.Defaults(), Policies: policies.Defaults(), CRDWait: 5 * time.Minute, PodReadiness: readinessLoose,
	}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *KubernetesOptions) Flags(fs *pflag.FlagSet) {
	o.K8s.Flags(fs)
	o.Policies.Flags(fs)
	fs.BoolVar(&o.EnableK8s, "enable-k8s", o.EnableK8s, "be a node of a Kubernetes cluster; default in a pod, and with --k8s-kubeconfig-path or --k8s-api-server")
	fs.DurationVar(&o.CRDWait, "crd-wait-timeout", o.CRDWait, "how long the custom resources may be missing before the agent gives up")
	fs.BoolVar(&o.NoEndpointObjects, "disable-endpoint-crd", o.NoEndpointObjects,
		"write no CiliumEndpoints: the operator makes CiliumEndpointSlices without them, or pods are published in a key-value store")
	fs.BoolVar(&o.EndpointSlices, "enable-cilium-endpoint-slice", o.EndpointSlices, "read other nodes' pods from CiliumEndpointSlices, which the operator must make")
	fs.StringVar(&o.Namespace, "k8s-namespace", o.Namespace, "namespace of the agents and the operator")
	fs.StringVar(&o.PodReadiness, "pod-readiness", o.PodReadiness,
		"when pods are ready: loose (when their containers are) or strict (those with the readiness gate network.hawser.net/identity-known once their identity is published to all nodes)")
}

// Validate checks every option and joins all faults in one error. Outside of Kubernetes none
// counts.
func (o *KubernetesOptions) Validate() error {
	if !o.EnableK8s {
		return nil
	}
	var errs validate.Errors
	errs.OneOf("pod-readiness", o.PodReadiness, readinessLoose, readinessStrict)
	errs.If(o.CRDWait <= 0, "--crd-wait-timeout: %s is not above 0", o.CRDWait)
	return errors.Join(append(errs, o.K8s.Validate(), o.Policies.Validate())...)
}

// inNamespace is the namespace of the agents and the operator.
func (o *KubernetesOptions) inNamespace() string { return cmp.Or(o.Namespace, "default") }
