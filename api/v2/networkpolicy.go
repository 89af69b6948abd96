package v2

import (
	"encoding/json"
	"errors"
	"strconv"
)

// Kinds of network policy.
const (
	KindNetworkPolicy            = "CiliumNetworkPolicy"
	KindClusterwideNetworkPolicy = "CiliumClusterwideNetworkPolicy"
)

// CiliumNetworkPolicy is a policy for the endpoints of its own namespace.
type CiliumNetworkPolicy struct {
	TypeMeta `json:",inline"`
	Metadata ObjectMeta `json:"metadata"`
	// Spec or Specs hold the rules; one of them must be there.
	Spec   *Rule                `json:"spec,omitempty"`
	Specs  []*Rule              `json:"specs,omitempty"`
	Status *NetworkPolicyStatus `json:"status,omitempty"`
}

// CiliumClusterwideNetworkPolicy is a policy for endpoints of all namespaces.
type CiliumClusterwideNetworkPolicy struct {
	TypeMeta `json:",inline"`
	Metadata ObjectMeta           `json:"metadata"`
	Spec     *Rule                `json:"spec,omitempty"`
	Specs    []*Rule              `json:"specs,omitempty"`
	Status   *NetworkPolicyStatus `json:"status,omitempty"`
}

// NetworkPolicyStatus tells what became of a policy.
type NetworkPolicyStatus struct {
	Conditions         []NetworkPolicyCondition   `json:"conditions,omitempty"`
	DerivativePolicies map[string]json.RawMessage `json:"derivativePolicies,omitempty"`
}

// NetworkPolicyCondition is one statement about a policy, such as "Valid".
type NetworkPolicyCondition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason,omitempty"`
	Message            string `json:"message,omitempty"`
	LastTransitionTime string `json:"lastTransitionTime,omitempty"`
}

// Rule says what the selected endpoints may receive and send.
type Rule struct {
	EndpointSelector  *LabelSelector `json:"endpointSelector,omitempty"`
	NodeSelector      *LabelSelector `json:"nodeSelector,omitempty"`
	Ingress           []IngressRule  `json:"ingress,omitzero"`
	IngressDeny       []IngressRule  `json:"ingressDeny,omitzero"`
	Egress            []EgressRule   `json:"egress,omitzero"`
	EgressDeny        []EgressRule   `json:"egressDeny,omitzero"`
	Labels            []RuleLabel    `json:"labels,omitempty"`
	EnableDefaultDeny *DefaultDeny   `json:"enableDefaultDeny,omitempty"`
	Description       string         `json:"description,omitempty"`
	Log               *RuleLog       `json:"log,omitempty"`
}

// RuleLabel is a label of the rule itself.
type RuleLabel struct {
	Key    string `json:"key"`
	Source string `json:"source,omitempty"`
	Value  string `json:"value,omitempty"`
}

// DefaultDeny says per direction whether the rule makes its endpoints drop what nothing allows.
// Unset means: if the rule has entries for the direction.
type DefaultDeny struct {
	Ingress *bool `json:"ingress,omitempty"`
	Egress  *bool `json:"egress,omitempty"`
}

// RuleLog marks the verdicts of the rule in logs.
type RuleLog struct {
	Value string `json:"value,omitempty"`
}

// IngressRule allows (or under ingressDeny denies) traffic from peers to ports.
type IngressRule struct {
	FromEndpoints  []LabelSelector `json:"fromEndpoints,omitzero"`
	FromRequires   []LabelSelector `json:"fromRequires,omitzero"`
	FromCIDR       []string        `json:"fromCIDR,omitzero"`
	FromCIDRSet    []CIDRRule      `json:"fromCIDRSet,omitzero"`
	FromEntities   []string        `json:"fromEntities,omitzero"`
	FromGroups     []Group         `json:"fromGroups,omitzero"`
	FromNodes      []LabelSelector `json:"fromNodes,omitzero"`
	ToPorts        []PortRule      `json:"toPorts,omitzero"`
	ICMPs          []ICMPRule      `json:"icmps,omitzero"`
	Authentication *Authentication `json:"authentication,omitempty"`
}

// EgressRule allows (or under egressDeny denies) traffic to peers and ports.
type EgressRule struct {
	ToEndpoints    []LabelSelector `json:"toEndpoints,omitzero"`
	ToRequires     []LabelSelector `json:"toRequires,omitzero"`
	ToCIDR         []string        `json:"toCIDR,omitzero"`
	ToCIDRSet      []CIDRRule      `json:"toCIDRSet,omitzero"`
	ToEntities     []string        `json:"toEntities,omitzero"`
	ToServices     []Service       `json:"toServices,omitzero"`
	ToFQDNs        []FQDNSelector  `json:"toFQDNs,omitzero"`
	ToGroups       []Group         `json:"toGroups,omitzero"`
	ToNodes        []LabelSelector `json:"toNodes,omitzero"`
	ToPorts        []PortRule      `json:"toPorts,omitzero"`
	ICMPs          []ICMPRule      `json:"icmps,omitzero"`
	Authentication *Authentication `json:"authentication,omitempty"`
}

// CIDRRule is a prefix without some prefixes inside it, or a reference to groups of prefixes.
type CIDRRule struct {
	CIDR              string         `json:"cidr,omitempty"`
	CIDRGroupRef      string         `json:"cidrGroupRef,omitempty"`
	CIDRGroupSelector *LabelSelector `json:"cidrGroupSelector,omitempty"`
	Except            []string       `json:"except,omitempty"`
}

// Service names Kubernetes services as peers.
type Service struct {
	K8sService *struct {
		ServiceName string `json:"serviceName,omitempty"`
		Namespace   string `json:"namespace,omitempty"`
	} `json:"k8sService,omitempty"`
	K8sServiceSelector *struct {
		Selector  LabelSelector `json:"selector"`
		Namespace string        `json:"namespace,omitempty"`
	} `json:"k8sServiceSelector,omitempty"`
}

// FQDNSelector names peers by DNS name.
type FQDNSelector struct {
	MatchName    string `json:"matchName,omitempty"`
	MatchPattern string `json:"matchPattern,omitempty"`
}

// Group names peers by groups that a cloud provider knows.
type Group struct {
	AWS *struct {
		Labels              map[string]string `json:"labels,omitempty"`
		SecurityGroupsIDs   []string          `json:"securityGroupsIds,omitempty"`
		SecurityGroupsNames []string          `json:"securityGroupsNames,omitempty"`
		Region              string            `json:"region,omitempty"`
	} `json:"aws,omitempty"`
}

// Authentication asks for mutual authentication.
type Authentication struct {
	Mode string `json:"mode"`
}

// PortRule is a list of ports, and what is asked of the traffic above layer 4.
type PortRule struct {
	Ports          []PortProtocol `json:"ports,omitzero"`
	Rules          *L7Rules       `json:"rules,omitempty"`
	Listener       *Listener      `json:"listener,omitempty"`
	OriginatingTLS *TLSContext    `json:"originatingTLS,omitempty"`
	TerminatingTLS *TLSContext    `json:"terminatingTLS,omitempty"`
	ServerNames    []string       `json:"serverNames,omitzero"`
}

// PortProtocol is a port, a range of ports or a named port of a protocol.
type PortProtocol struct {
	// Port is a number or a name; "0" is every port.
	Port string `json:"port,omitempty"`
	// EndPort makes Port the first of a range; 0 is absent.
	EndPort  int32  `json:"endPort,omitempty"`
	Protocol string `json:"protocol,omitempty"`
}

// L7Rules are rules above layer 4.
type L7Rules struct {
	HTTP []json.RawMessage `json:"http,omitzero"`
	DNS  []FQDNSelector    `json:"dns,omitzero"`
}

// Listener redirects to a proxy.
type Listener struct {
	EnvoyConfig struct {
		Kind string `json:"kind,omitempty"`
		Name string `json:"name"`
	} `json:"envoyConfig"`
	Name     string `json:"name"`
	Priority int32  `json:"priority,omitempty"`
}

// TLSContext says where keys and certificates are.
type TLSContext struct {
	Secret struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace,omitempty"`
	} `json:"secret"`
	Certificate string `json:"certificate,omitempty"`
	PrivateKey  string `json:"privateKey,omitempty"`
	TrustedCA   string `json:"trustedCA,omitempty"`
}

// ICMPRule is a list of ICMP message types.
type ICMPRule struct {
	Fields []ICMPField `json:"fields,omitzero"`
}

// ICMPField is a message type of a family.
type ICMPField struct {
	// Family is "IPv4" (also when empty) or "IPv6".
	Family string `json:"family,omitempty"`
	// Type is required; nil if absent.
	Type *IntOrString `json:"type"`
}

// IntOrString is a number or a word in JSON; it keeps the text.
type IntOrString string

// UnmarshalJSON accepts an integer or a string.
func (v *IntOrString) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err == nil {
		*v = IntOrString(s)
		return nil
	}
	var n int64
	if err := json.Unmarshal(data, &n); err != nil {
		return errors.New("want an integer or a string")
	}
	*v = IntOrString(strconv.FormatInt(n, 10))
	return nil
}

// MarshalJSON writes a number if the text is one.
func (v IntOrString) MarshalJSON() ([]byte, error) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil && strconv.FormatInt(n, 10) == string(v) {
		return []byte(v), nil
	}
	return json.Marshal(string(v))
}
