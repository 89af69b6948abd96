package service

// Forwarding is how the packets of a client outside reach a backend on another node. It is a text,
// as options and annotations give it.
type Forwarding string

// The ways. The zero value is unset.
const (
	// ForwardSNAT sends them in the name of the node that the client asked, through which the
	// answers come back.
	ForwardSNAT Forwarding = "snat"
	// ForwardDSR sends them in the client's own name, and the backend's node answers.
	ForwardDSR Forwarding = "dsr"
	// ForwardHybrid is ForwardDSR for TCP and ForwardSNAT for the rest.
	ForwardHybrid Forwarding = "hybrid"
)

// AnnotationForwarding is the annotation by which a service asks for a Forwarding of its own:
// ForwardSNAT or ForwardDSR.
const AnnotationForwarding = "service.cilium.io/forwarding-mode"

// ReadForwarding reads [AnnotationForwarding] of a service. What is not understood is as if it was
// not there.
func ReadForwarding(annotations map[string]string) Forwarding {
	if f := Forwarding(annotations[AnnotationForwarding]); f == ForwardSNAT || f == ForwardDSR {
		return f
	}
	return ""
}

// direct reports whether clients of a protocol are answered by the backend's node.
func (f Forwarding) direct(proto uint8) bool {
	return f == ForwardDSR || (f == ForwardHybrid && proto == protoTCP)
}

// How a backend is chosen for a client outside of the cluster: values of --bpf-lb-algorithm.
const (
	Random = "random"
	Maglev = "maglev"
)
