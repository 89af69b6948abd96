package v2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumEndpoint is what the network knows about a pod. It has the pod's name and namespace and is
// written by the agent of the pod's node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumendpoints,singular=ciliumendpoint,scope=Namespaced,shortName={cep,ciliumep},categories=cilium
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
// +kubebuilder:selectablefield:JSONPath=".status.networking.node"
// +kubebuilder:selectablefield:JSONPath=".status.identity.id"
// +kubebuilder:printcolumn:name="Security Identity",type=integer,JSONPath=".status.identity.id",description="Number of the identity"
// +kubebuilder:printcolumn:name="Ingress Enforcement",type=string,JSONPath=".status.policy.ingress.state",description="Whether policy is enforced on what the pod receives",priority=1
// +kubebuilder:printcolumn:name="Egress Enforcement",type=string,JSONPath=".status.policy.egress.state",description="Whether policy is enforced on what the pod sends",priority=1
// +kubebuilder:printcolumn:name="Endpoint State",type=string,JSONPath=".status.state",description="State of the endpoint"
// +kubebuilder:printcolumn:name="IPv4",type=string,JSONPath=".status.networking.addressing[0].ipv4",description="IPv4 address of the pod"
// +kubebuilder:printcolumn:name="IPv6",type=string,JSONPath=".status.networking.addressing[0].ipv6",description="IPv6 address of the pod"
type CiliumEndpoint struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata"`
	// +optional
	Status EndpointStatus `json:"status,omitzero"`
}

// CiliumEndpointList is a list of endpoints.
//
// +kubebuilder:object:root=true
type CiliumEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumEndpoint `json:"items"`
}

// EndpointState is the state of an endpoint. The agent writes the states of an endpoint that
// forwards traffic (restoring, waiting-to-regenerate, regenerating, ready, disconnecting,
// disconnected) as EndpointReady, so that the object changes only when something does for others.
//
// +kubebuilder:validation:Enum=creating;waiting-for-identity;not-ready;waiting-to-regenerate;regenerating;restoring;ready;disconnecting;disconnected;invalid
type EndpointState string

// States of an endpoint.
const (
	EndpointCreating            EndpointState = "creating"
	EndpointWaitingForIdentity  EndpointState = "waiting-for-identity"
	EndpointNotReady            EndpointState = "not-ready"
	EndpointWaitingToRegenerate EndpointState = "waiting-to-regenerate"
	EndpointRegenerating        EndpointState = "regenerating"
	EndpointRestoring           EndpointState = "restoring"
	EndpointReady               EndpointState = "ready"
	EndpointDisconnecting       EndpointState = "disconnecting"
	EndpointDisconnected        EndpointState = "disconnected"
	EndpointInvalid             EndpointState = "invalid"
)

// EndpointStatus is what the agent reports about an endpoint. The agent fills ID,
// ExternalIdentifiers, Identity, Networking, State, Encryption, NamedPorts and ServiceAccount; the
// rest is read from other writers' objects.
type EndpointStatus struct {
	// +optional
	Controllers []ControllerStatus `json:"controllers,omitempty"`
	// +optional
	Encryption EncryptionSpec `json:"encryption,omitzero"`
	// +optional
	ExternalIdentifiers *EndpointIdentifiers `json:"external-identifiers,omitempty"`
	// +optional
	Health *EndpointHealth `json:"health,omitempty"`
	// ID is the endpoint's number on its node.
	// +optional
	ID int64 `json:"id,omitempty"`
	// Identity is absent as long as the endpoint has no cluster-wide number.
	// +optional
	Identity *EndpointIdentity `json:"identity,omitempty"`
	// +optional
	Log []*EndpointStatusChange `json:"log,omitempty"`
	// +optional
	NamedPorts []NamedPort `json:"named-ports,omitempty"`
	// +optional
	Networking *EndpointNetworking `json:"networking,omitempty"`
	// +optional
	Policy *EndpointPolicy `json:"policy,omitempty"`
	// ServiceAccount is the name of the pod's service account.
	// +optional
	ServiceAccount string `json:"service-account,omitempty"`
	// +optional
	State EndpointState `json:"state,omitempty"`
}

// ControllerStatus is the status of a task that an agent repeats for an endpoint.
type ControllerStatus struct {
	// +optional
	Configuration *ControllerConfiguration `json:"configuration,omitempty"`
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Status ControllerCounts `json:"status,omitzero"`
	// +optional
	UUID string `json:"uuid,omitempty"`
}

// ControllerConfiguration is how often the work is repeated; times are in nanoseconds.
type ControllerConfiguration struct {
	// +optional
	ErrorRetry bool `json:"error-retry,omitempty"`
	// +optional
	ErrorRetryBase int64 `json:"error-retry-base,omitempty"`
	// +optional
	Interval int64 `json:"interval,omitempty"`
}

// ControllerCounts counts the successes and failures of the task.
type ControllerCounts struct {
	// +optional
	ConsecutiveFailureCount int64 `json:"consecutive-failure-count,omitempty"`
	// +optional
	FailureCount int64 `json:"failure-count,omitempty"`
	// +optional
	LastFailureMsg string `json:"last-failure-msg,omitempty"`
	// +optional
	LastFailureTimestamp string `json:"last-failure-timestamp,omitempty"`
	// +optional
	LastSuccessTimestamp string `json:"last-success-timestamp,omitempty"`
	// +optional
	SuccessCount int64 `json:"success-count,omitempty"`
}

// EncryptionSpec names the key that a node encrypts with; 0 is none.
type EncryptionSpec struct {
	// +optional
	Key int `json:"key,omitempty"`
}

// EndpointIdentifiers are the names that others have for an endpoint.
type EndpointIdentifiers struct {
	// CNIAttachmentID is "container:interface", as the runtime named it to the plugin.
	// +optional
	CNIAttachmentID string `json:"cni-attachment-id,omitempty"`
	// +optional
	ContainerID string `json:"container-id,omitempty"`
	// +optional
	ContainerName string `json:"container-name,omitempty"`
	// +optional
	DockerEndpointID string `json:"docker-endpoint-id,omitempty"`
	// +optional
	DockerNetworkID string `json:"docker-network-id,omitempty"`
	// +optional
	K8sNamespace string `json:"k8s-namespace,omitempty"`
	// +optional
	K8sPodName string `json:"k8s-pod-name,omitempty"`
	// PodName is "namespace/name".
	// +optional
	PodName string `json:"pod-name,omitempty"`
}

// EndpointHealth is what an agent found when it looked at an endpoint.
type EndpointHealth struct {
	// +optional
	BPF string `json:"bpf,omitempty"`
	// +optional
	Connected bool `json:"connected,omitempty"`
	// +optional
	OverallHealth string `json:"overallHealth,omitempty"`
	// +optional
	Policy string `json:"policy,omitempty"`
}

// EndpointIdentity is the identity of an endpoint.
type EndpointIdentity struct {
	// ID is the cluster-wide number.
	// +optional
	ID int64 `json:"id,omitempty"`
	// Labels are those that the number stands for, sorted, each "source:key=value".
	// +optional
	Labels []string `json:"labels,omitempty"`
}

// EndpointStatusChange is an entry of an endpoint's log.
type EndpointStatusChange struct {
	// Code is "ok" or "failed".
	// +optional
	Code string `json:"code,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	State string `json:"state,omitempty"`
	// +optional
	Timestamp string `json:"timestamp,omitempty"`
}

// NamedPort is a port of a pod that has a name.
type NamedPort struct {
	// +optional
	Name string `json:"name,omitempty"`
	// Port is from 1 to 65535; readers check it.
	// +optional
	Port int `json:"port,omitempty"`
	// Protocol is "TCP", "UDP" or "SCTP".
	// +optional
	Protocol string `json:"protocol,omitempty"`
}

// EndpointNetworking is the location of an endpoint.
type EndpointNetworking struct {
	// Addressing holds the addresses: one pair.
	// +required
	Addressing []*AddressPair `json:"addressing"`
	// NodeIP is the address of the node, IPv4 if it has one.
	// +optional
	NodeIP string `json:"node,omitempty"`
}

// AddressPair is an address of each family; either may be "".
type AddressPair struct {
	// +optional
	IPv4 string `json:"ipv4,omitempty"`
	// +optional
	IPv6 string `json:"ipv6,omitempty"`
}

// EndpointPolicy is how policy is enforced.
type EndpointPolicy struct {
	// +optional
	Egress *EndpointPolicyDirection `json:"egress,omitempty"`
	// +optional
	Ingress *EndpointPolicyDirection `json:"ingress,omitempty"`
}

// EndpointPolicyDirection is how policy is enforced on one direction.
type EndpointPolicyDirection struct {
	// +optional
	Adding []AllowedIdentity `json:"adding,omitempty"`
	// +optional
	Allowed []AllowedIdentity `json:"allowed,omitempty"`
	// +optional
	Denied []AllowedIdentity `json:"denied,omitempty"`
	// +required
	Enforcing bool `json:"enforcing"`
	// +optional
	Removing []AllowedIdentity `json:"removing,omitempty"`
	// State is "enforcing", "non-enforcing" or "disabled".
	// +optional
	State string `json:"state,omitempty"`
}

// AllowedIdentity is a peer with a port.
type AllowedIdentity struct {
	// +optional
	DestPort int `json:"dest-port,omitempty"`
	// +optional
	Identity int64 `json:"identity,omitempty"`
	// +optional
	IdentityLabels map[string]string `json:"identity-labels,omitempty"`
	// Protocol is the number in the IP header.
	// +optional
	Protocol int `json:"protocol,omitempty"`
}
