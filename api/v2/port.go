package v2

import (
	"encoding/json"
	"errors"
	"strconv"
)

// PortRule is a list of ports, and what is asked of the traffic above layer 4.
type PortRule struct {
	// +optional
	// +kubebuilder:validation:MaxItems=40
	Ports []PortProtocol `json:"ports,omitzero"`
	// +optional
	Rules *L7Rules `json:"rules,omitempty"`
	// +optional
	Listener *Listener `json:"listener,omitempty"`
	// +optional
	OriginatingTLS *TLSContext `json:"originatingTLS,omitempty"`
	// +optional
	TerminatingTLS *TLSContext `json:"terminatingTLS,omitempty"`
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:MinLength=1
	ServerNames []string `json:"serverNames,omitzero"`
}

// PortDenyRule is a list of ports.
type PortDenyRule struct {
	// +optional
	// +kubebuilder:validation:MaxItems=40
	Ports []PortProtocol `json:"ports,omitzero"`
}

// PortProtocol is a port, a range of ports or a named port of a protocol.
type PortProtocol struct {
	// Port is a number or a name; "0" is every port.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`
	Port string `json:"port,omitempty"`
	// EndPort makes Port the first of a range; 0 is absent.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	EndPort int32 `json:"endPort,omitempty"`
	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP;VRRP;IGMP;GRE;IPIP;IPV6;ESP;AH;ANY
	Protocol string `json:"protocol,omitempty"`
}

// L7Rules are rules above layer 4, of one protocol.
//
// +kubebuilder:validation:ExactlyOneOf=http;dns
type L7Rules struct {
	// +optional
	HTTP []HTTPRule `json:"http,omitzero"`
	// +optional
	DNS []FQDNSelector `json:"dns,omitzero"`
}

// HTTPRule matches HTTP requests.
type HTTPRule struct {
	// +optional
	Path string `json:"path,omitempty"`
	// +optional
	Method string `json:"method,omitempty"`
	// +optional
	// +kubebuilder:validation:Format=idn-hostname
	Host string `json:"host,omitempty"`
	// +optional
	Headers []string `json:"headers,omitempty"`
	// +optional
	HeaderMatches []HeaderMatch `json:"headerMatches,omitempty"`
}

// HeaderMatch matches a header of an HTTP request, and selects what to do on a mismatch.
type HeaderMatch struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// +optional
	Value string `json:"value,omitempty"`
	// +optional
	// +kubebuilder:validation:Enum=LOG;ADD;DELETE;REPLACE
	Mismatch string `json:"mismatch,omitempty"`
	// +optional
	Secret *SecretReference `json:"secret,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// +required
	Name string `json:"name"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// Listener redirects to a proxy.
type Listener struct {
	// +required
	EnvoyConfig EnvoyConfigReference `json:"envoyConfig"`
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Priority int32 `json:"priority,omitempty"`
}

// EnvoyConfigReference names the configuration of a proxy.
type EnvoyConfigReference struct {
	// +optional
	// +kubebuilder:validation:Enum=CiliumEnvoyConfig;CiliumClusterwideEnvoyConfig
	Kind string `json:"kind,omitempty"`
	// +required
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// TLSContext is where keys and certificates are.
type TLSContext struct {
	// +required
	Secret SecretReference `json:"secret"`
	// +optional
	Certificate string `json:"certificate,omitempty"`
	// +optional
	PrivateKey string `json:"privateKey,omitempty"`
	// +optional
	TrustedCA string `json:"trustedCA,omitempty"`
}

// ICMPRule is a list of ICMP message types.
type ICMPRule struct {
	// +optional
	// +kubebuilder:validation:MaxItems=40
	Fields []ICMPField `json:"fields,omitzero"`
}

// ICMPField is a message type of a family.
type ICMPField struct {
	// Family is "IPv4" (also when empty) or "IPv6".
	// +optional
	// +kubebuilder:default=IPv4
	// +kubebuilder:validation:Enum=IPv4;IPv6
	Family string `json:"family,omitempty"`
	// Type is a number or a name; nil if absent, which is a fault.
	// +required
	Type *IntOrString `json:"type"`
}

// IntOrString is a number or a word in JSON; it keeps the text. It is a struct because the
// machinery of the API asks only structs how they read themselves.
//
// +kubebuilder:validation:Type=""
// +kubebuilder:validation:XIntOrString
type IntOrString struct {
	// Text is the number in decimal, or the word.
	Text string `json:"-"`
}

// String returns the text.
func (v IntOrString) String() string { return v.Text }

// UnmarshalJSON accepts a number or a string. It takes numbers that make no sense too: one object
// that cannot be read would make a list of objects unreadable, and the user of the text checks it.
func (v *IntOrString) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &v.Text); err == nil {
		return nil
	}
	var n json.Number
	if err := json.Unmarshal(data, &n); err != nil {
		return errors.New("want an integer or a string")
	}
	v.Text = n.String()
	return nil
}

// MarshalJSON writes a number if the text is one.
func (v IntOrString) MarshalJSON() ([]byte, error) {
	if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil && strconv.FormatInt(n, 10) == v.Text {
		return []byte(v.Text), nil
	}
	return json.Marshal(v.Text)
}
