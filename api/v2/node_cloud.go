package v2

// ENISpec is how interfaces of an AWS instance are made.
type ENISpec struct {
	// +optional
	AvailabilityZone string `json:"availability-zone,omitempty"`
	// DeleteOnTermination is true if absent.
	// +optional
	DeleteOnTermination *bool `json:"delete-on-termination,omitempty"`
	// +optional
	DisablePrefixDelegation *bool `json:"disable-prefix-delegation,omitempty"`
	// ExcludeInterfaceTags are tags of interfaces to leave alone.
	// +optional
	ExcludeInterfaceTags map[string]string `json:"exclude-interface-tags,omitempty"`
	// FirstInterfaceIndex is the first interface whose addresses are given to pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	FirstInterfaceIndex *int `json:"first-interface-index,omitempty"`
	// +optional
	InstanceType string `json:"instance-type,omitempty"`
	// +optional
	NodeSubnetID string `json:"node-subnet-id,omitempty"`
	// +optional
	SecurityGroupTags map[string]string `json:"security-group-tags,omitempty"`
	// +optional
	SecurityGroups []string `json:"security-groups,omitempty"`
	// +optional
	SubnetIDs []string `json:"subnet-ids,omitempty"`
	// +optional
	SubnetTags map[string]string `json:"subnet-tags,omitempty"`
	// +optional
	UsePrimaryAddress *bool `json:"use-primary-address,omitempty"`
	// +optional
	VpcID string `json:"vpc-id,omitempty"`
}

// ENIStatus describes the interfaces of an AWS instance.
type ENIStatus struct {
	// ENIs are the interfaces by number.
	// +optional
	ENIs map[string]ENI `json:"enis,omitempty"`
}

// ENI is an interface of an AWS instance.
type ENI struct {
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// +optional
	AvailabilityZone string `json:"availability-zone,omitempty"`
	// +optional
	Description string `json:"description,omitempty"`
	// +optional
	ID string `json:"id,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// +optional
	IPv6Prefixes []string `json:"ipv6-prefixes,omitempty"`
	// +optional
	MAC string `json:"mac,omitempty"`
	// Number is the interface's place on the instance.
	// +optional
	Number int `json:"number,omitempty"`
	// +optional
	Prefixes []string `json:"prefixes,omitempty"`
	// +optional
	PublicIP string `json:"public-ip,omitempty"`
	// +optional
	SecurityGroups []string `json:"security-groups,omitempty"`
	// +optional
	Subnet ENISubnet `json:"subnet,omitzero"`
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// +optional
	VPC ENIVPC `json:"vpc,omitzero"`
}

// ENISubnet is a subnet of AWS.
type ENISubnet struct {
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	ID string `json:"id,omitempty"`
}

// ENIVPC is a virtual private cloud of AWS.
type ENIVPC struct {
	// +optional
	CIDRs []string `json:"cidrs,omitempty"`
	// +optional
	ID string `json:"id,omitempty"`
	// +optional
	PrimaryCIDR string `json:"primary-cidr,omitempty"`
}

// AzureSpec selects the interface of an Azure machine.
type AzureSpec struct {
	// +optional
	InterfaceName string `json:"interface-name,omitempty"`
}

// AzureStatus describes the interfaces of an Azure machine.
type AzureStatus struct {
	// +optional
	Interfaces []AzureInterface `json:"interfaces,omitempty"`
}

// AzureInterface is an interface of an Azure machine.
type AzureInterface struct {
	// +optional
	Addresses []AzureAddress `json:"addresses,omitempty"`
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// +optional
	ID string `json:"id,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// +optional
	MAC string `json:"mac,omitempty"`
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	SecurityGroup string `json:"security-group,omitempty"`
	// +optional
	State string `json:"state,omitempty"`
	// +optional
	Subnet AzureSubnet `json:"subnet,omitzero"`
}

// AzureAddress is an address of an Azure interface.
type AzureAddress struct {
	// +optional
	IP string `json:"ip,omitempty"`
	// +optional
	State string `json:"state,omitempty"`
	// +optional
	Subnet string `json:"subnet,omitempty"`
}

// AzureSubnet is a subnet of Azure.
type AzureSubnet struct {
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	ID string `json:"id,omitempty"`
}

// AlibabaCloudSpec is how interfaces of an Alibaba Cloud instance are made.
type AlibabaCloudSpec struct {
	// +optional
	AvailabilityZone string `json:"availability-zone,omitempty"`
	// +optional
	CIDRBlock string `json:"cidr-block,omitempty"`
	// +optional
	InstanceType string `json:"instance-type,omitempty"`
	// +optional
	SecurityGroupTags map[string]string `json:"security-group-tags,omitempty"`
	// +optional
	SecurityGroups []string `json:"security-groups,omitempty"`
	// +optional
	VPCID string `json:"vpc-id,omitempty"`
	// +optional
	VSwitchTags map[string]string `json:"vswitch-tags,omitempty"`
	// +optional
	VSwitches []string `json:"vswitches,omitempty"`
}

// AlibabaCloudStatus describes the interfaces of an Alibaba Cloud instance.
type AlibabaCloudStatus struct {
	// ENIs are the interfaces by number.
	// +optional
	ENIs map[string]AlibabaENI `json:"enis,omitempty"`
}

// AlibabaENI is an interface of an Alibaba Cloud instance.
type AlibabaENI struct {
	// +optional
	InstanceID string `json:"instance-id,omitempty"`
	// +optional
	MACAddress string `json:"mac-address,omitempty"`
	// +optional
	NetworkInterfaceID string `json:"network-interface-id,omitempty"`
	// +optional
	PrimaryIPAddress string `json:"primary-ip-address,omitempty"`
	// +optional
	PrivateIPSets []AlibabaPrivateIPSet `json:"private-ipsets,omitempty"`
	// +optional
	SecurityGroupIDs []string `json:"security-groupids,omitempty"`
	// +optional
	Tags map[string]string `json:"tags,omitempty"`
	// Type is "Primary" or "Secondary".
	// +optional
	Type string `json:"type,omitempty"`
	// +optional
	VPC AlibabaVPC `json:"vpc,omitzero"`
	// +optional
	VSwitch AlibabaVSwitch `json:"vswitch,omitzero"`
	// +optional
	ZoneID string `json:"zone-id,omitempty"`
}

// AlibabaPrivateIPSet is an address of an Alibaba Cloud interface.
type AlibabaPrivateIPSet struct {
	// +optional
	Primary bool `json:"primary,omitempty"`
	// +optional
	PrivateIPAddress string `json:"private-ip-address,omitempty"`
}

// AlibabaVPC is a virtual private cloud of Alibaba Cloud.
type AlibabaVPC struct {
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	IPv6CIDR string `json:"ipv6-cidr,omitempty"`
	// +optional
	SecondaryCIDRs []string `json:"secondary-cidrs,omitempty"`
	// +optional
	VPCID string `json:"vpc-id,omitempty"`
}

// AlibabaVSwitch is a switch of Alibaba Cloud.
type AlibabaVSwitch struct {
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	IPv6CIDR string `json:"ipv6-cidr,omitempty"`
	// +optional
	VSwitchID string `json:"vswitch-id,omitempty"`
}
