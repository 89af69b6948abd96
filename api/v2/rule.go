package v2

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Rule is what the selected endpoints may receive and send.
//
// +kubebuilder:validation:ExactlyOneOf=endpointSelector;nodeSelector
// +kubebuilder:validation:AtLeastOneOf=ingress;ingressDeny;egress;egressDeny
type Rule struct {
	// +optional
	EndpointSelector *LabelSelector `json:"endpointSelector,omitempty"`
	// NodeSelector selects nodes instead of endpoints, in clusterwide policies.
	// +optional
	NodeSelector *LabelSelector `json:"nodeSelector,omitempty"`
	// +optional
	Ingress []IngressRule `json:"ingress,omitzero"`
	// +optional
	IngressDeny []IngressDenyRule `json:"ingressDeny,omitzero"`
	// +optional
	Egress []EgressRule `json:"egress,omitzero"`
	// +optional
	EgressDeny []EgressDenyRule `json:"egressDeny,omitzero"`
	// Labels are labels of the rule itself.
	// +optional
	Labels []RuleLabel `json:"labels,omitempty"`
	// +optional
	EnableDefaultDeny *DefaultDeny `json:"enableDefaultDeny,omitempty"`
	// +optional
	Description string `json:"description,omitempty"`
	// +optional
	Log *RuleLog `json:"log,omitempty"`
}

// GroupsLabel is the key of the label that MarkGroups gives to rules.
const GroupsLabel = "network.hawser.net/groups"

// MarkGroups labels rules that allow groups of a cloud provider with a digest of what another
// policy is derived from: whom the rule selects, and its entries with groups. Here groups are no
// peers, so that rules which name different ones could not be told apart.
func MarkGroups(rules ...*Rule) {
	for _, r := range rules {
		if r == nil {
			continue
		}
		from := Rule{EndpointSelector: r.EndpointSelector, NodeSelector: r.NodeSelector, EnableDefaultDeny: r.EnableDefaultDeny}
		for _, e := range r.Ingress {
			if e.FromGroups != nil {
				from.Ingress = append(from.Ingress, e)
			}
		}
		for _, e := range r.Egress {
			if e.ToGroups != nil {
				from.Egress = append(from.Egress, e)
			}
		}
		if len(from.Ingress)+len(from.Egress) == 0 {
			continue
		}
		text, _ := json.Marshal(from) // strings, numbers and lists; maps are written in order
		sum := sha256.Sum256(text)
		r.Labels = append(r.Labels, RuleLabel{Key: GroupsLabel, Value: hex.EncodeToString(sum[:12])})
	}
}

// RuleLabel is a label of the rule itself.
type RuleLabel struct {
	// +required
	Key string `json:"key"`
	// +optional
	Source string `json:"source,omitempty"`
	// +optional
	Value string `json:"value,omitempty"`
}

// DefaultDeny is, per direction, whether the rule makes its endpoints drop what nothing allows.
// Unset means: if the rule has entries for the direction.
type DefaultDeny struct {
	// +optional
	Ingress *bool `json:"ingress,omitempty"`
	// +optional
	Egress *bool `json:"egress,omitempty"`
}

// RuleLog marks the verdicts of the rule in logs.
type RuleLog struct {
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^\PC*$`
	Value string `json:"value,omitempty"`
}

// IngressRule allows traffic from peers to ports.
type IngressRule struct {
	// +optional
	FromEndpoints []LabelSelector `json:"fromEndpoints,omitzero"`
	// FromRequires must be empty.
	// +optional
	// +kubebuilder:validation:MaxItems=0
	FromRequires []LabelSelector `json:"fromRequires,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	FromCIDR []string `json:"fromCIDR,omitzero"`
	// +optional
	FromCIDRSet []CIDRRule `json:"fromCIDRSet,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Enum=all;world;cluster;cluster-mesh;host;init;ingress;unmanaged;remote-node;health;none;kube-apiserver
	FromEntities []string `json:"fromEntities,omitzero"`
	// +optional
	FromGroups []Group `json:"fromGroups,omitzero"`
	// +optional
	FromNodes []LabelSelector `json:"fromNodes,omitzero"`
	// +optional
	ToPorts []PortRule `json:"toPorts,omitzero"`
	// +optional
	ICMPs []ICMPRule `json:"icmps,omitzero"`
	// +optional
	Authentication *Authentication `json:"authentication,omitempty"`
}

// IngressDenyRule denies traffic from peers to ports.
type IngressDenyRule struct {
	// +optional
	FromEndpoints []LabelSelector `json:"fromEndpoints,omitzero"`
	// FromRequires must be empty.
	// +optional
	// +kubebuilder:validation:MaxItems=0
	FromRequires []LabelSelector `json:"fromRequires,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	FromCIDR []string `json:"fromCIDR,omitzero"`
	// +optional
	FromCIDRSet []CIDRRule `json:"fromCIDRSet,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Enum=all;world;cluster;cluster-mesh;host;init;ingress;unmanaged;remote-node;health;none;kube-apiserver
	FromEntities []string `json:"fromEntities,omitzero"`
	// +optional
	FromGroups []Group `json:"fromGroups,omitzero"`
	// +optional
	FromNodes []LabelSelector `json:"fromNodes,omitzero"`
	// +optional
	ToPorts []PortDenyRule `json:"toPorts,omitzero"`
	// +optional
	ICMPs []ICMPRule `json:"icmps,omitzero"`
}

// Entry returns the same peers and ports as an entry of the allowing kind, for readers that treat
// both alike. The lists are shared with r; absent ones stay absent and empty ones empty.
func (r *IngressDenyRule) Entry() IngressRule {
	return IngressRule{
		FromEndpoints: r.FromEndpoints, FromRequires: r.FromRequires, FromCIDR: r.FromCIDR, FromCIDRSet: r.FromCIDRSet,
		FromEntities: r.FromEntities, FromGroups: r.FromGroups, FromNodes: r.FromNodes, ToPorts: portRules(r.ToPorts), ICMPs: r.ICMPs,
	}
}

// EgressRule allows traffic to peers and ports.
type EgressRule struct {
	// +optional
	ToEndpoints []LabelSelector `json:"toEndpoints,omitzero"`
	// ToRequires must be empty.
	// +optional
	// +kubebuilder:validation:MaxItems=0
	ToRequires []LabelSelector `json:"toRequires,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	ToCIDR []string `json:"toCIDR,omitzero"`
	// +optional
	ToCIDRSet []CIDRRule `json:"toCIDRSet,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Enum=all;world;cluster;cluster-mesh;host;init;ingress;unmanaged;remote-node;health;none;kube-apiserver
	ToEntities []string `json:"toEntities,omitzero"`
	// +optional
	ToServices []Service `json:"toServices,omitzero"`
	// +optional
	ToFQDNs []FQDNSelector `json:"toFQDNs,omitzero"`
	// +optional
	ToGroups []Group `json:"toGroups,omitzero"`
	// +optional
	ToNodes []LabelSelector `json:"toNodes,omitzero"`
	// +optional
	ToPorts []PortRule `json:"toPorts,omitzero"`
	// +optional
	ICMPs []ICMPRule `json:"icmps,omitzero"`
	// +optional
	Authentication *Authentication `json:"authentication,omitempty"`
}

// EgressDenyRule denies traffic to peers and ports.
type EgressDenyRule struct {
	// +optional
	ToEndpoints []LabelSelector `json:"toEndpoints,omitzero"`
	// ToRequires must be empty.
	// +optional
	// +kubebuilder:validation:MaxItems=0
	ToRequires []LabelSelector `json:"toRequires,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	ToCIDR []string `json:"toCIDR,omitzero"`
	// +optional
	ToCIDRSet []CIDRRule `json:"toCIDRSet,omitzero"`
	// +optional
	// +kubebuilder:validation:items:Enum=all;world;cluster;cluster-mesh;host;init;ingress;unmanaged;remote-node;health;none;kube-apiserver
	ToEntities []string `json:"toEntities,omitzero"`
	// +optional
	ToServices []Service `json:"toServices,omitzero"`
	// +optional
	ToGroups []Group `json:"toGroups,omitzero"`
	// +optional
	ToNodes []LabelSelector `json:"toNodes,omitzero"`
	// +optional
	ToPorts []PortDenyRule `json:"toPorts,omitzero"`
	// +optional
	ICMPs []ICMPRule `json:"icmps,omitzero"`
}

// Entry returns the same peers and ports as an entry of the allowing kind, for readers that treat
// both alike. The lists are shared with r; absent ones stay absent and empty ones empty.
func (r *EgressDenyRule) Entry() EgressRule {
	return EgressRule{
		ToEndpoints: r.ToEndpoints, ToRequires: r.ToRequires, ToCIDR: r.ToCIDR, ToCIDRSet: r.ToCIDRSet, ToEntities: r.ToEntities,
		ToServices: r.ToServices, ToGroups: r.ToGroups, ToNodes: r.ToNodes, ToPorts: portRules(r.ToPorts), ICMPs: r.ICMPs,
	}
}

func portRules(in []PortDenyRule) []PortRule {
	if in == nil {
		return nil
	}
	out := make([]PortRule, len(in))
	for i := range in {
		out[i].Ports = in[i].Ports
	}
	return out
}
