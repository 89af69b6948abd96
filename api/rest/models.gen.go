// Code generated from api/openapi.yaml by oapi-codegen v2.8.2. DO NOT EDIT.

package rest

import (
	"time"
)

// Defines values for DatapathMode.
const (
	DatapathModeLbOnly   DatapathMode = "lb-only"
	DatapathModeNetkit   DatapathMode = "netkit"
	DatapathModeNetkitL2 DatapathMode = "netkit-l2"
	DatapathModeVeth     DatapathMode = "veth"
)

// Valid indicates whether the value is a known member of the DatapathMode enum.
func (e DatapathMode) Valid() bool {
	switch e {
	case DatapathModeLbOnly:
		return true
	case DatapathModeNetkit:
		return true
	case DatapathModeNetkitL2:
		return true
	case DatapathModeVeth:
		return true
	default:
		return false
	}
}

// Defines values for EndpointHealthStatus.
const (
	EndpointHealthStatusBootstrap EndpointHealthStatus = "Bootstrap"
	EndpointHealthStatusDisabled  EndpointHealthStatus = "Disabled"
	EndpointHealthStatusFailure   EndpointHealthStatus = "Failure"
	EndpointHealthStatusOK        EndpointHealthStatus = "OK"
	EndpointHealthStatusPending   EndpointHealthStatus = "Pending"
	EndpointHealthStatusWarning   EndpointHealthStatus = "Warning"
)

// Valid indicates whether the value is a known member of the EndpointHealthStatus enum.
func (e EndpointHealthStatus) Valid() bool {
	switch e {
	case EndpointHealthStatusBootstrap:
		return true
	case EndpointHealthStatusDisabled:
		return true
	case EndpointHealthStatusFailure:
		return true
	case EndpointHealthStatusOK:
		return true
	case EndpointHealthStatusPending:
		return true
	case EndpointHealthStatusWarning:
		return true
	default:
		return false
	}
}

// Defines values for EndpointPolicyEnabled.
const (
	EndpointPolicyEnabledAuditBoth    EndpointPolicyEnabled = "audit-both"
	EndpointPolicyEnabledAuditEgress  EndpointPolicyEnabled = "audit-egress"
	EndpointPolicyEnabledAuditIngress EndpointPolicyEnabled = "audit-ingress"
	EndpointPolicyEnabledBoth         EndpointPolicyEnabled = "both"
	EndpointPolicyEnabledEgress       EndpointPolicyEnabled = "egress"
	EndpointPolicyEnabledIngress      EndpointPolicyEnabled = "ingress"
	EndpointPolicyEnabledNone         EndpointPolicyEnabled = "none"
)

// Valid indicates whether the value is a known member of the EndpointPolicyEnabled enum.
func (e EndpointPolicyEnabled) Valid() bool {
	switch e {
	case EndpointPolicyEnabledAuditBoth:
		return true
	case EndpointPolicyEnabledAuditEgress:
		return true
	case EndpointPolicyEnabledAuditIngress:
		return true
	case EndpointPolicyEnabledBoth:
		return true
	case EndpointPolicyEnabledEgress:
		return true
	case EndpointPolicyEnabledIngress:
		return true
	case EndpointPolicyEnabledNone:
		return true
	default:
		return false
	}
}

// Defines values for EndpointState.
const (
	EndpointStateCreating            EndpointState = "creating"
	EndpointStateDisconnected        EndpointState = "disconnected"
	EndpointStateDisconnecting       EndpointState = "disconnecting"
	EndpointStateInvalid             EndpointState = "invalid"
	EndpointStateNotReady            EndpointState = "not-ready"
	EndpointStateReady               EndpointState = "ready"
	EndpointStateRegenerating        EndpointState = "regenerating"
	EndpointStateRestoring           EndpointState = "restoring"
	EndpointStateWaitingForIdentity  EndpointState = "waiting-for-identity"
	EndpointStateWaitingToRegenerate EndpointState = "waiting-to-regenerate"
)

// Valid indicates whether the value is a known member of the EndpointState enum.
func (e EndpointState) Valid() bool {
	switch e {
	case EndpointStateCreating:
		return true
	case EndpointStateDisconnected:
		return true
	case EndpointStateDisconnecting:
		return true
	case EndpointStateInvalid:
		return true
	case EndpointStateNotReady:
		return true
	case EndpointStateReady:
		return true
	case EndpointStateRegenerating:
		return true
	case EndpointStateRestoring:
		return true
	case EndpointStateWaitingForIdentity:
		return true
	case EndpointStateWaitingToRegenerate:
		return true
	default:
		return false
	}
}

// Defines values for MapPolicyDirection.
const (
	MapPolicyDirectionEgress  MapPolicyDirection = "egress"
	MapPolicyDirectionIngress MapPolicyDirection = "ingress"
)

// Valid indicates whether the value is a known member of the MapPolicyDirection enum.
func (e MapPolicyDirection) Valid() bool {
	switch e {
	case MapPolicyDirectionEgress:
		return true
	case MapPolicyDirectionIngress:
		return true
	default:
		return false
	}
}

// Defines values for MonitorEventType.
const (
	MonitorEventTypeDrop          MonitorEventType = "drop"
	MonitorEventTypeLost          MonitorEventType = "lost"
	MonitorEventTypePolicyVerdict MonitorEventType = "policy-verdict"
	MonitorEventTypeTrace         MonitorEventType = "trace"
)

// Valid indicates whether the value is a known member of the MonitorEventType enum.
func (e MonitorEventType) Valid() bool {
	switch e {
	case MonitorEventTypeDrop:
		return true
	case MonitorEventTypeLost:
		return true
	case MonitorEventTypePolicyVerdict:
		return true
	case MonitorEventTypeTrace:
		return true
	default:
		return false
	}
}

// Defines values for PolicyEnforcement.
const (
	PolicyEnforcementAlways  PolicyEnforcement = "always"
	PolicyEnforcementDefault PolicyEnforcement = "default"
	PolicyEnforcementNever   PolicyEnforcement = "never"
)

// Valid indicates whether the value is a known member of the PolicyEnforcement enum.
func (e PolicyEnforcement) Valid() bool {
	switch e {
	case PolicyEnforcementAlways:
		return true
	case PolicyEnforcementDefault:
		return true
	case PolicyEnforcementNever:
		return true
	default:
		return false
	}
}

// Defines values for PolicyFileState.
const (
	PolicyFileStateFaulty PolicyFileState = "faulty"
	PolicyFileStateOk     PolicyFileState = "ok"
)

// Valid indicates whether the value is a known member of the PolicyFileState enum.
func (e PolicyFileState) Valid() bool {
	switch e {
	case PolicyFileStateFaulty:
		return true
	case PolicyFileStateOk:
		return true
	default:
		return false
	}
}

// Defines values for PolicyTraceStepEffect.
const (
	PolicyTraceStepEffectAllow PolicyTraceStepEffect = "allow"
	PolicyTraceStepEffectDeny  PolicyTraceStepEffect = "deny"
	PolicyTraceStepEffectNone  PolicyTraceStepEffect = "none"
	PolicyTraceStepEffectPass  PolicyTraceStepEffect = "pass"
)

// Valid indicates whether the value is a known member of the PolicyTraceStepEffect enum.
func (e PolicyTraceStepEffect) Valid() bool {
	switch e {
	case PolicyTraceStepEffectAllow:
		return true
	case PolicyTraceStepEffectDeny:
		return true
	case PolicyTraceStepEffectNone:
		return true
	case PolicyTraceStepEffectPass:
		return true
	default:
		return false
	}
}

// Defines values for PolicyVerdict.
const (
	PolicyVerdictAllowed PolicyVerdict = "allowed"
	PolicyVerdictAudit   PolicyVerdict = "audit"
	PolicyVerdictDenied  PolicyVerdict = "denied"
)

// Valid indicates whether the value is a known member of the PolicyVerdict enum.
func (e PolicyVerdict) Valid() bool {
	switch e {
	case PolicyVerdictAllowed:
		return true
	case PolicyVerdictAudit:
		return true
	case PolicyVerdictDenied:
		return true
	default:
		return false
	}
}

// Defines values for State.
const (
	StateDisabled State = "Disabled"
	StateFailure  State = "Failure"
	StateOk       State = "Ok"
	StateWarning  State = "Warning"
)

// Valid indicates whether the value is a known member of the State enum.
func (e State) Valid() bool {
	switch e {
	case StateDisabled:
		return true
	case StateFailure:
		return true
	case StateOk:
		return true
	case StateWarning:
		return true
	default:
		return false
	}
}

// AddressPair defines model for AddressPair.
type AddressPair struct {
	IPv4               string `json:"ipv4,omitempty,omitzero"`
	IPv4ExpirationUUID string `json:"ipv4-expiration-uuid,omitempty,omitzero"`
	IPv4PoolName       string `json:"ipv4-pool-name,omitempty,omitzero"`
	IPv6               string `json:"ipv6,omitempty,omitzero"`
	IPv6ExpirationUUID string `json:"ipv6-expiration-uuid,omitempty,omitzero"`
	IPv6PoolName       string `json:"ipv6-pool-name,omitempty,omitzero"`
}

// BPFMap defines model for BPFMap.
type BPFMap struct {
	Cache []BPFMapEntry `json:"cache,omitempty,omitzero"`
	Path  string        `json:"path,omitempty,omitzero"`
}

// BPFMapEntry A row for people in key and value, and for programs in the one of the other fields that is
// the map's kind.
type BPFMapEntry struct {
	// DesiredAction ok, insert or delete
	DesiredAction string `json:"desired-action,omitempty,omitzero"`

	// Endpoint Hawser: row of the map endpoints
	Endpoint MapEndpoint `json:"endpoint,omitempty,omitzero"`

	// Flow Hawser: row of the map ct
	Flow MapFlow `json:"flow,omitempty,omitzero"`

	// IPCache Hawser: row of the map ipcache
	IPCache   MapIPCache `json:"ipcache,omitempty,omitzero"`
	Key       string     `json:"key,omitempty,omitzero"`
	LastError string     `json:"last-error,omitempty,omitzero"`

	// Metric Hawser: row of the map metrics
	Metric MapMetric `json:"metric,omitempty,omitzero"`

	// Policy Hawser: row of the map policy. A rule set without entries has one row without an entry, so that its defaults show.
	Policy MapPolicy `json:"policy,omitempty,omitzero"`

	// Service Hawser: row of the map services
	Service MapService `json:"service,omitempty,omitzero"`

	// Share Hawser: row of the map shares: what is held of conntrack on behalf of an endpoint
	Share MapShare `json:"share,omitempty,omitzero"`
	Value string   `json:"value,omitempty,omitzero"`
}

// BPFMapList defines model for BPFMapList.
type BPFMapList struct {
	Maps []BPFMap `json:"maps,omitempty,omitzero"`
}

// BPFMapProperties defines model for BPFMapProperties.
type BPFMapProperties struct {
	Name string `json:"name,omitempty,omitzero"`
	Size int    `json:"size,omitempty,omitzero"`
}

// BPFMapStatus defines model for BPFMapStatus.
type BPFMapStatus struct {
	DynamicSizeRatio float64            `json:"dynamic-size-ratio,omitempty,omitzero"`
	Maps             []BPFMapProperties `json:"maps,omitempty,omitzero"`
}

// BackendAddress defines model for BackendAddress.
type BackendAddress struct {
	IP       string `json:"ip"`
	Port     int    `json:"port,omitempty,omitzero"`
	Protocol string `json:"protocol,omitempty,omitzero"`
	State    string `json:"state,omitempty,omitzero"`
}

// BigTCPStatus Packets of TCP beyond 64 KiB inside the node
type BigTCPStatus struct {
	Enabled bool `json:"enabled,omitempty,omitzero"`

	// MaxGRO Bytes after reassembly, 0 for the kernel's default
	MaxGRO int `json:"maxGRO,omitempty,omitzero"`

	// MaxGSO Bytes before segmentation, 0 for the kernel's default
	MaxGSO int `json:"maxGSO,omitempty,omitzero"`
}

// CIDRPolicy defines model for CIDRPolicy.
type CIDRPolicy struct {
	Egress  []PolicyRule `json:"egress,omitempty,omitzero"`
	Ingress []PolicyRule `json:"ingress,omitempty,omitzero"`
}

// CNIChainingStatus defines model for CNIChainingStatus.
type CNIChainingStatus struct {
	Mode string `json:"mode,omitempty,omitzero"`
}

// CgroupMetadata defines model for CgroupMetadata.
type CgroupMetadata struct {
	PodMetadatas []map[string]interface{} `json:"pod-metadatas,omitempty,omitzero"`
}

// ClusterMeshStatus defines model for ClusterMeshStatus.
type ClusterMeshStatus struct {
	Clusters []RemoteCluster `json:"clusters,omitempty,omitzero"`

	// Fault Hawser: what is wrong with the directory of clusters
	Fault             string `json:"fault,omitempty,omitzero"`
	NumGlobalServices int    `json:"num-global-services,omitempty,omitzero"`
}

// ClusterNodeStatus defines model for ClusterNodeStatus.
type ClusterNodeStatus struct {
	ClientID     int           `json:"client-id,omitempty,omitzero"`
	NodesAdded   []NodeElement `json:"nodes-added,omitempty,omitzero"`
	NodesRemoved []NodeElement `json:"nodes-removed,omitempty,omitzero"`
	Self         string        `json:"self,omitempty,omitzero"`
}

// ClusterStatus defines model for ClusterStatus.
type ClusterStatus struct {
	// CiliumHealth Health of a part with the reason
	CiliumHealth Status        `json:"ciliumHealth,omitempty,omitzero"`
	Nodes        []NodeElement `json:"nodes,omitempty,omitzero"`
	Self         string        `json:"self,omitempty,omitzero"`
}

// ConfigurationMap Options by name
type ConfigurationMap map[string]string

// ControllerConfiguration defines model for ControllerConfiguration.
type ControllerConfiguration struct {
	ErrorRetry bool `json:"error-retry,omitempty,omitzero"`

	// ErrorRetryBase Go duration, as 1s
	ErrorRetryBase string `json:"error-retry-base,omitempty,omitzero"`

	// Interval Go duration, as 5m0s
	Interval string `json:"interval,omitempty,omitzero"`
}

// ControllerRunStatus defines model for ControllerRunStatus.
type ControllerRunStatus struct {
	ConsecutiveFailureCount int       `json:"consecutive-failure-count,omitempty,omitzero"`
	FailureCount            int       `json:"failure-count,omitempty,omitzero"`
	LastFailureMsg          string    `json:"last-failure-msg,omitempty,omitzero"`
	LastFailureTimestamp    time.Time `json:"last-failure-timestamp,omitempty,omitzero"`
	LastSuccessTimestamp    time.Time `json:"last-success-timestamp,omitempty,omitzero"`
	SuccessCount            int       `json:"success-count,omitempty,omitzero"`
}

// ControllerStatus A task that repeats
type ControllerStatus struct {
	Configuration ControllerConfiguration `json:"configuration,omitempty,omitzero"`
	Name          string                  `json:"name,omitempty,omitzero"`
	Status        ControllerRunStatus     `json:"status,omitempty,omitzero"`
	UUID          string                  `json:"uuid,omitempty,omitzero"`
}

// DaemonConfiguration defines model for DaemonConfiguration.
type DaemonConfiguration struct {
	// Spec What can change at run time
	Spec DaemonConfigurationSpec `json:"spec,omitempty,omitzero"`

	// Status Configuration in force and facts of the node
	Status DaemonConfigurationStatus `json:"status,omitempty,omitzero"`
}

// DaemonConfigurationSpec What can change at run time
type DaemonConfigurationSpec struct {
	// Options Options by name
	Options ConfigurationMap `json:"options,omitempty,omitzero"`

	// PolicyEnforcement Which endpoints enforce policy
	PolicyEnforcement PolicyEnforcement `json:"policy-enforcement,omitempty,omitzero"`
}

// DaemonConfigurationStatus Configuration in force and facts of the node
type DaemonConfigurationStatus struct {
	GROIPv4MaxSize int `json:"GROIPv4MaxSize,omitempty,omitzero"`
	GROMaxSize     int `json:"GROMaxSize,omitempty,omitzero"`
	GSOIPv4MaxSize int `json:"GSOIPv4MaxSize,omitempty,omitzero"`
	GSOMaxSize     int `json:"GSOMaxSize,omitempty,omitzero"`

	// Addressing The node's own addresses in the pod network
	Addressing             NodeAddressing         `json:"addressing,omitempty,omitzero"`
	ConfiguredDatapathMode string                 `json:"configuredDatapathMode,omitempty,omitzero"`
	DaemonConfigurationMap map[string]interface{} `json:"daemonConfigurationMap,omitempty,omitzero"`

	// DatapathMode Kind of link between a pod and its node
	DatapathMode   DatapathMode `json:"datapathMode,omitempty,omitzero"`
	DeviceHeadroom int          `json:"deviceHeadroom,omitempty,omitzero"`

	// DeviceMTU MTU of pod interfaces
	DeviceMTU                    int  `json:"deviceMTU,omitempty,omitzero"`
	DeviceTailroom               int  `json:"deviceTailroom,omitempty,omitzero"`
	EnableBBRHostNamespaceOnly   bool `json:"enableBBRHostNamespaceOnly,omitempty,omitzero"`
	EnableRouteMTUForCNIChaining bool `json:"enableRouteMTUForCNIChaining,omitempty,omitzero"`

	// Immutable Options by name
	Immutable                           ConfigurationMap     `json:"immutable,omitempty,omitzero"`
	InstallUplinkRoutesForDelegatedIPAM bool                 `json:"installUplinkRoutesForDelegatedIPAM,omitempty,omitzero"`
	IPLocalReservedPorts                string               `json:"ipLocalReservedPorts,omitempty,omitzero"`
	IPAMMode                            string               `json:"ipam-mode,omitempty,omitzero"`
	K8SConfiguration                    string               `json:"k8s-configuration,omitempty,omitzero"`
	K8SEndpoint                         string               `json:"k8s-endpoint,omitempty,omitzero"`
	KVStoreConfiguration                KVStoreConfiguration `json:"kvstoreConfiguration,omitempty,omitzero"`
	Masquerade                          bool                 `json:"masquerade,omitempty,omitzero"`
	MasqueradeProtocols                 EnabledProtocols     `json:"masqueradeProtocols,omitempty,omitzero"`

	// NodeMonitor State of the event buffer
	NodeMonitor MonitorStatus `json:"nodeMonitor,omitempty,omitzero"`

	// PacketizationLayerPMTUDMode blackhole, always, disabled or unset
	PacketizationLayerPMTUDMode string `json:"packetizationLayerPMTUDMode,omitempty,omitzero"`

	// Realized What can change at run time
	Realized DaemonConfigurationSpec `json:"realized,omitempty,omitzero"`

	// RouteMTU MTU of the pods' default route, 0 if that of the interface
	RouteMTU int `json:"routeMTU,omitempty,omitzero"`
}

// DatapathMode Kind of link between a pod and its node
type DatapathMode string

// DebugInfo The state of all parts
type DebugInfo struct {
	// CiliumStatus Health of the agent and its parts
	CiliumStatus  StatusResponse `json:"cilium-status,omitempty,omitzero"`
	CiliumVersion string         `json:"cilium-version,omitempty,omitzero"`

	// Encryption Encryption between nodes; there is none
	Encryption   EncryptionStatus `json:"encryption,omitempty,omitzero"`
	EndpointList []Endpoint       `json:"endpoint-list,omitempty,omitzero"`

	// EnvironmentVariables Options, written name:value
	EnvironmentVariables []string  `json:"environment-variables,omitempty,omitzero"`
	KernelVersion        string    `json:"kernel-version,omitempty,omitzero"`
	Policy               Policy    `json:"policy,omitempty,omitzero"`
	ServiceList          []Service `json:"service-list,omitempty,omitzero"`

	// Subsystem Tables by name, as text
	Subsystem map[string]string `json:"subsystem,omitempty,omitzero"`
}

// EnabledProtocols defines model for EnabledProtocols.
type EnabledProtocols struct {
	IPv4 bool `json:"ipv4,omitempty,omitzero"`
	IPv6 bool `json:"ipv6,omitempty,omitzero"`
}

// EncryptionStatus Encryption between nodes; there is none
type EncryptionStatus struct {
	// Mode Disabled
	Mode string `json:"mode,omitempty,omitzero"`
	Msg  string `json:"msg,omitempty,omitzero"`
}

// Endpoint defines model for Endpoint.
type Endpoint struct {
	// ID Number on this node, 1 to 65535
	ID     int                       `json:"id,omitempty,omitzero"`
	Spec   EndpointConfigurationSpec `json:"spec,omitempty,omitzero"`
	Status EndpointStatus            `json:"status,omitempty,omitzero"`
}

// EndpointBatchDeleteRequest defines model for EndpointBatchDeleteRequest.
type EndpointBatchDeleteRequest struct {
	ContainerID string `json:"container-id,omitempty,omitzero"`
}

// EndpointChangeRequest A new endpoint or a change of one
type EndpointChangeRequest struct {
	Addressing             AddressPair                   `json:"addressing,omitempty,omitzero"`
	ContainerID            string                        `json:"container-id,omitempty,omitzero"`
	ContainerInterfaceName string                        `json:"container-interface-name,omitempty,omitzero"`
	ContainerName          string                        `json:"container-name,omitempty,omitzero"`
	ContainerNetnsPath     string                        `json:"container-netns-path,omitempty,omitzero"`
	DatapathConfiguration  EndpointDatapathConfiguration `json:"datapath-configuration,omitempty,omitzero"`
	DatapathMapID          int                           `json:"datapath-map-id,omitempty,omitzero"`

	// HostMAC Hardware address of the host side
	HostMAC string `json:"host-mac,omitempty,omitzero"`

	// ID 0 to have one chosen
	ID int `json:"id,omitempty,omitzero"`

	// InterfaceIndex Index of the host side
	InterfaceIndex int `json:"interface-index,omitempty,omitzero"`

	// InterfaceName Name of the host side
	InterfaceName        string `json:"interface-name,omitempty,omitzero"`
	IsSecondaryInterface bool   `json:"is-secondary-interface,omitempty,omitzero"`
	K8SNamespace         string `json:"k8s-namespace,omitempty,omitzero"`
	K8SPodName           string `json:"k8s-pod-name,omitempty,omitzero"`
	K8SUid               string `json:"k8s-uid,omitempty,omitzero"`

	// Labels Labels written source:key=value
	Labels Labels `json:"labels,omitempty,omitzero"`

	// MAC Hardware address inside the pod
	MAC string `json:"mac,omitempty,omitzero"`

	// NetnsCookie Decimal number
	NetnsCookie          string                 `json:"netns-cookie,omitempty,omitzero"`
	ParentInterfaceIndex int                    `json:"parent-interface-index,omitempty,omitzero"`
	PID                  int                    `json:"pid,omitempty,omitzero"`
	PolicyEnabled        bool                   `json:"policy-enabled,omitempty,omitzero"`
	Properties           map[string]interface{} `json:"properties,omitempty,omitzero"`
	State                EndpointState          `json:"state"`

	// SyncBuildEndpoint Return when the kernel enforces; false is refused
	SyncBuildEndpoint *bool `json:"sync-build-endpoint,omitempty"`
}

// EndpointConfigurationSpec defines model for EndpointConfigurationSpec.
type EndpointConfigurationSpec struct {
	LabelConfiguration LabelConfigurationSpec `json:"label-configuration,omitempty,omitzero"`

	// Options Options by name
	Options ConfigurationMap `json:"options,omitempty,omitzero"`
}

// EndpointConfigurationStatus defines model for EndpointConfigurationStatus.
type EndpointConfigurationStatus struct {
	// Error Cause of a failure, for people
	Error ErrorMessage `json:"error,omitempty,omitzero"`

	// Immutable Options by name
	Immutable ConfigurationMap          `json:"immutable,omitempty,omitzero"`
	Realized  EndpointConfigurationSpec `json:"realized,omitempty,omitzero"`
}

// EndpointDatapathConfiguration defines model for EndpointDatapathConfiguration.
type EndpointDatapathConfiguration struct {
	DisableSIPVerification bool  `json:"disable-sip-verification,omitempty,omitzero"`
	ExternalIPAM           bool  `json:"external-ipam,omitempty,omitzero"`
	InstallEndpointRoute   bool  `json:"install-endpoint-route,omitempty,omitzero"`
	RequireArpPassthrough  bool  `json:"require-arp-passthrough,omitempty,omitzero"`
	RequireEgressProg      bool  `json:"require-egress-prog,omitempty,omitzero"`
	RequireRouting         *bool `json:"require-routing,omitempty"`
}

// EndpointHealth defines model for EndpointHealth.
type EndpointHealth struct {
	BPF           EndpointHealthStatus `json:"bpf,omitempty,omitzero"`
	Connected     bool                 `json:"connected,omitempty,omitzero"`
	OverallHealth EndpointHealthStatus `json:"overallHealth,omitempty,omitzero"`
	Policy        EndpointHealthStatus `json:"policy,omitempty,omitzero"`
}

// EndpointHealthStatus defines model for EndpointHealthStatus.
type EndpointHealthStatus string

// EndpointIdentifiers defines model for EndpointIdentifiers.
type EndpointIdentifiers struct {
	CNIAttachmentID  string `json:"cni-attachment-id,omitempty,omitzero"`
	ContainerID      string `json:"container-id,omitempty,omitzero"`
	ContainerName    string `json:"container-name,omitempty,omitzero"`
	DockerEndpointID string `json:"docker-endpoint-id,omitempty,omitzero"`
	DockerNetworkID  string `json:"docker-network-id,omitempty,omitzero"`
	K8SNamespace     string `json:"k8s-namespace,omitempty,omitzero"`
	K8SPodName       string `json:"k8s-pod-name,omitempty,omitzero"`
	PodName          string `json:"pod-name,omitempty,omitzero"`
}

// EndpointNetworking defines model for EndpointNetworking.
type EndpointNetworking struct {
	Addressing             []AddressPair `json:"addressing,omitempty,omitzero"`
	ContainerInterfaceName string        `json:"container-interface-name,omitempty,omitzero"`

	// HostAddressing The node's own addresses in the pod network
	HostAddressing NodeAddressing `json:"host-addressing,omitempty,omitzero"`
	HostMAC        string         `json:"host-mac,omitempty,omitzero"`
	InterfaceIndex int            `json:"interface-index,omitempty,omitzero"`
	InterfaceName  string         `json:"interface-name,omitempty,omitzero"`
	MAC            string         `json:"mac,omitempty,omitzero"`
}

// EndpointPolicy defines model for EndpointPolicy.
type EndpointPolicy struct {
	AllowedEgressIdentities  []int      `json:"allowed-egress-identities,omitempty,omitzero"`
	AllowedIngressIdentities []int      `json:"allowed-ingress-identities,omitempty,omitzero"`
	Build                    int        `json:"build,omitempty,omitzero"`
	CIDRPolicy               CIDRPolicy `json:"cidr-policy,omitempty,omitzero"`
	DeniedEgressIdentities   []int      `json:"denied-egress-identities,omitempty,omitzero"`
	DeniedIngressIdentities  []int      `json:"denied-ingress-identities,omitempty,omitzero"`

	// ID The endpoint's identity
	ID int      `json:"id,omitempty,omitzero"`
	L4 L4Policy `json:"l4,omitempty,omitzero"`

	// PolicyEnabled Directions in which policy is enforced
	PolicyEnabled  EndpointPolicyEnabled `json:"policy-enabled,omitempty,omitzero"`
	PolicyRevision int                   `json:"policy-revision,omitempty,omitzero"`
}

// EndpointPolicyEnabled Directions in which policy is enforced
type EndpointPolicyEnabled string

// EndpointPolicyStatus defines model for EndpointPolicyStatus.
type EndpointPolicyStatus struct {
	ProxyPolicyRevision int                      `json:"proxy-policy-revision,omitempty,omitzero"`
	ProxyStatistics     []map[string]interface{} `json:"proxy-statistics,omitempty,omitzero"`
	Realized            EndpointPolicy           `json:"realized,omitempty,omitzero"`
	Spec                EndpointPolicy           `json:"spec,omitempty,omitzero"`
}

// EndpointState defines model for EndpointState.
type EndpointState string

// EndpointStatus defines model for EndpointStatus.
type EndpointStatus struct {
	Controllers         []ControllerStatus        `json:"controllers,omitempty,omitzero"`
	ExternalIdentifiers EndpointIdentifiers       `json:"external-identifiers,omitempty,omitzero"`
	Health              EndpointHealth            `json:"health,omitempty,omitzero"`
	Identity            Identity                  `json:"identity,omitempty,omitzero"`
	Labels              LabelConfigurationStatus  `json:"labels,omitempty,omitzero"`
	Log                 []EndpointStatusChange    `json:"log,omitempty,omitzero"`
	NamedPorts          []NamedPort               `json:"namedPorts,omitempty,omitzero"`
	Networking          EndpointNetworking        `json:"networking,omitempty,omitzero"`
	Policy              EndpointPolicyStatus      `json:"policy,omitempty,omitzero"`
	Realized            EndpointConfigurationSpec `json:"realized,omitempty,omitzero"`
	State               EndpointState             `json:"state"`
}

// EndpointStatusChange defines model for EndpointStatusChange.
type EndpointStatusChange struct {
	// Code ok or failed
	Code    string        `json:"code,omitempty,omitzero"`
	Message string        `json:"message,omitempty,omitzero"`
	State   EndpointState `json:"state,omitempty,omitzero"`

	// Timestamp RFC 3339
	Timestamp string `json:"timestamp,omitempty,omitzero"`
}

// ErrorCount How many errors an operation met
type ErrorCount = int

// ErrorMessage Cause of a failure, for people
type ErrorMessage = string

// FrontendAddress defines model for FrontendAddress.
type FrontendAddress struct {
	IP       string `json:"ip,omitempty,omitzero"`
	Port     int    `json:"port,omitempty,omitzero"`
	Protocol string `json:"protocol,omitempty,omitzero"`

	// Scope external; internal if it is for the node's pods and processes alone; node, Hawser's own, if it is for the processes only; other-node if it is for pods that ask any other node
	Scope string `json:"scope,omitempty,omitzero"`
}

// HealthAddresses defines model for HealthAddresses.
type HealthAddresses struct {
	// PrimaryAddress Connectivity to an address; what was not probed yet is left out
	PrimaryAddress     HealthPath   `json:"primary-address,omitempty,omitzero"`
	SecondaryAddresses []HealthPath `json:"secondary-addresses,omitempty,omitzero"`
}

// HealthConnectivity defines model for HealthConnectivity.
type HealthConnectivity struct {
	LastProbed time.Time `json:"lastProbed,omitempty,omitzero"`

	// Latency Nanoseconds
	Latency int64 `json:"latency,omitempty,omitzero"`

	// Since Hawser: when this state began
	Since time.Time `json:"since,omitempty,omitzero"`

	// Status Why there is no answer; empty if there is one
	Status string `json:"status,omitempty,omitzero"`
}

// HealthNode Connectivity to a node
type HealthNode struct {
	// Endpoint Connectivity to an address; what was not probed yet is left out
	Endpoint       HealthPath      `json:"endpoint,omitempty,omitzero"`
	HealthEndpoint HealthAddresses `json:"health-endpoint,omitempty,omitzero"`
	Host           HealthAddresses `json:"host,omitempty,omitzero"`

	// Name cluster/node
	Name string `json:"name,omitempty,omitzero"`
}

// HealthPath Connectivity to an address; what was not probed yet is left out
type HealthPath struct {
	HTTP HealthConnectivity `json:"http,omitempty,omitzero"`
	ICMP HealthConnectivity `json:"icmp,omitempty,omitzero"`
	IP   string             `json:"ip,omitempty,omitzero"`
}

// HealthSelf defines model for HealthSelf.
type HealthSelf struct {
	Name string `json:"name,omitempty,omitzero"`
}

// HealthStatus Connectivity to all nodes, as this one sees it
type HealthStatus struct {
	Local HealthSelf   `json:"local,omitempty,omitzero"`
	Nodes []HealthNode `json:"nodes,omitempty,omitzero"`

	// ProbeInterval How long a round through all nodes takes, as 1m0s
	ProbeInterval string    `json:"probeInterval,omitempty,omitzero"`
	Timestamp     time.Time `json:"timestamp,omitempty,omitzero"`
}

// IPAMAddressResponse defines model for IPAMAddressResponse.
type IPAMAddressResponse struct {
	Cidrs           []string `json:"cidrs,omitempty,omitzero"`
	ExpirationUUID  string   `json:"expiration-uuid,omitempty,omitzero"`
	Gateway         string   `json:"gateway,omitempty,omitzero"`
	InterfaceNumber string   `json:"interface-number,omitempty,omitzero"`
	IP              string   `json:"ip,omitempty,omitzero"`
	MasterMAC       string   `json:"master-mac,omitempty,omitzero"`
	SkipMasquerade  bool     `json:"skip-masquerade,omitempty,omitzero"`
}

// IPAMResponse defines model for IPAMResponse.
type IPAMResponse struct {
	Address AddressPair `json:"address"`

	// HostAddressing The node's own addresses in the pod network
	HostAddressing NodeAddressing      `json:"host-addressing"`
	IPv4           IPAMAddressResponse `json:"ipv4,omitempty,omitzero"`
	IPv6           IPAMAddressResponse `json:"ipv6,omitempty,omitzero"`
}

// IPAMStatus Addresses given out
type IPAMStatus struct {
	// Allocations Owner by address
	Allocations map[string]string `json:"allocations,omitempty,omitzero"`
	IPv4        []string          `json:"ipv4,omitempty,omitzero"`
	IPv6        []string          `json:"ipv6,omitempty,omitzero"`
	Status      string            `json:"status,omitempty,omitzero"`
}

// IPListEntry defines model for IPListEntry.
type IPListEntry struct {
	CIDR       string              `json:"cidr"`
	EncryptKey int                 `json:"encryptKey,omitempty,omitzero"`
	HostIP     string              `json:"hostIP,omitempty,omitzero"`
	Identity   int                 `json:"identity"`
	Metadata   IPListEntryMetadata `json:"metadata,omitempty,omitzero"`
}

// IPListEntryMetadata defines model for IPListEntryMetadata.
type IPListEntryMetadata struct {
	Name      string `json:"name,omitempty,omitzero"`
	Namespace string `json:"namespace,omitempty,omitzero"`
	Source    string `json:"source,omitempty,omitzero"`
}

// Identity defines model for Identity.
type Identity struct {
	ID int `json:"id,omitempty,omitzero"`

	// Labels Labels written source:key=value
	Labels       Labels `json:"labels,omitempty,omitzero"`
	LabelsSHA256 string `json:"labelsSHA256,omitempty,omitzero"`

	// SeenAs The identity ID that all other nodes use for an endpoint whose identity is temporary.
	SeenAs int `json:"seenAs,omitempty,omitzero"`

	// Temporary The number means something on this node only: the cluster has none for the labels yet.
	Temporary bool `json:"temporary,omitempty,omitzero"`
}

// IdentityEndpoints defines model for IdentityEndpoints.
type IdentityEndpoints struct {
	Identity Identity `json:"identity,omitempty,omitzero"`
	RefCount int      `json:"refCount,omitempty,omitzero"`
}

// IdentityRange defines model for IdentityRange.
type IdentityRange struct {
	MaxIdentity int `json:"max-identity,omitempty,omitzero"`
	MinIdentity int `json:"min-identity,omitempty,omitzero"`
}

// K8SStatus defines model for K8sStatus.
type K8SStatus struct {
	K8SApiVersions []string `json:"k8s-api-versions,omitempty,omitzero"`
	Msg            string   `json:"msg,omitempty,omitzero"`

	// State Health of a part
	State State `json:"state,omitempty,omitzero"`
}

// KVStoreConfiguration defines model for KVStoreConfiguration.
type KVStoreConfiguration struct {
	// Options Options by name
	Options ConfigurationMap `json:"options,omitempty,omitzero"`
	Type    string           `json:"type,omitempty,omitzero"`
}

// KubeProxyReplacement defines model for KubeProxyReplacement.
type KubeProxyReplacement struct {
	// Mode True or False
	Mode string `json:"mode,omitempty,omitzero"`
}

// L4Policy defines model for L4Policy.
type L4Policy struct {
	Egress  []PolicyRule `json:"egress,omitempty,omitzero"`
	Ingress []PolicyRule `json:"ingress,omitempty,omitzero"`
}

// Label defines model for Label.
type Label struct {
	Key    string `json:"key,omitempty,omitzero"`
	Source string `json:"source,omitempty,omitzero"`
	Value  string `json:"value,omitempty,omitzero"`
}

// LabelConfiguration defines model for LabelConfiguration.
type LabelConfiguration struct {
	Spec   LabelConfigurationSpec   `json:"spec,omitempty,omitzero"`
	Status LabelConfigurationStatus `json:"status,omitempty,omitzero"`
}

// LabelConfigurationSpec defines model for LabelConfigurationSpec.
type LabelConfigurationSpec struct {
	// User Labels written source:key=value
	User Labels `json:"user,omitempty,omitzero"`
}

// LabelConfigurationStatus defines model for LabelConfigurationStatus.
type LabelConfigurationStatus struct {
	// Derived Labels written source:key=value
	Derived Labels `json:"derived,omitempty,omitzero"`

	// Disabled Labels written source:key=value
	Disabled Labels                 `json:"disabled,omitempty,omitzero"`
	Realized LabelConfigurationSpec `json:"realized,omitempty,omitzero"`

	// SecurityRelevant Labels written source:key=value
	SecurityRelevant Labels `json:"security-relevant,omitempty,omitzero"`
}

// Labels Labels written source:key=value
type Labels = []string

// MapEndpoint Hawser: row of the map endpoints
type MapEndpoint struct {
	HostMAC          string `json:"host-mac,omitempty,omitzero"`
	ID               int    `json:"id"`
	Identity         int    `json:"identity"`
	InterfaceIndex   int    `json:"interface-index"`
	InterfaceName    string `json:"interface-name,omitempty,omitzero"`
	IPv4             string `json:"ipv4,omitempty,omitzero"`
	IPv6             string `json:"ipv6,omitempty,omitzero"`
	Locked           bool   `json:"locked,omitempty,omitzero"`
	MAC              string `json:"mac,omitempty,omitzero"`
	PolicyGeneration int    `json:"policy-generation,omitempty,omitzero"`
	RuleSet          int    `json:"rule-set"`
}

// MapFlow Hawser: row of the map ct
type MapFlow struct {
	Closing               bool   `json:"closing,omitempty,omitzero"`
	Destination           string `json:"destination"`
	DestinationGeneration int    `json:"destination-generation,omitempty,omitzero"`
	DestinationIdentity   int    `json:"destination-identity,omitempty,omitzero"`

	// ExpiresSeconds Negative when expired
	ExpiresSeconds int    `json:"expires-seconds,omitempty,omitzero"`
	ForwardPackets uint64 `json:"forward-packets,omitempty,omitzero"`
	Proto          string `json:"proto"`
	ReversePackets uint64 `json:"reverse-packets,omitempty,omitzero"`
	SeenReply      bool   `json:"seen-reply,omitempty,omitzero"`

	// Source Address and port of the side that opened the flow
	Source           string `json:"source"`
	SourceGeneration int    `json:"source-generation,omitempty,omitzero"`
	SourceIdentity   int    `json:"source-identity,omitempty,omitzero"`
}

// MapIPCache Hawser: row of the map ipcache
type MapIPCache struct {
	Identity       int    `json:"identity"`
	Prefix         string `json:"prefix"`
	TunnelEndpoint string `json:"tunnel-endpoint,omitempty,omitzero"`
}

// MapMetric Hawser: row of the map metrics
type MapMetric struct {
	Bytes     uint64 `json:"bytes"`
	Direction string `json:"direction"`
	Packets   uint64 `json:"packets"`
	Reason    string `json:"reason"`
}

// MapPolicy Hawser: row of the map policy. A rule set without entries has one row without an entry, so that its defaults show.
type MapPolicy struct {
	// Admin The first rule of the admin tier, as deny@3: what it does and its place in the rule set's order; empty if there is none
	Admin string `json:"admin,omitempty,omitzero"`

	// Baseline The same of the baseline tier
	Baseline string `json:"baseline,omitempty,omitzero"`

	// Block The block of addresses that the identity stands for; empty if it is that of an endpoint or prefix
	Block string `json:"block,omitempty,omitzero"`

	// Default The row is the direction's default, not an entry
	Default   bool               `json:"default,omitempty,omitzero"`
	Direction MapPolicyDirection `json:"direction"`

	// Enforced What no entry matches is dropped
	Enforced bool `json:"enforced,omitempty,omitzero"`

	// Identity 0 is any
	Identity int `json:"identity,omitempty,omitzero"`
	Port     int `json:"port,omitempty,omitzero"`

	// PortBits Leading bits of the port that count; 0 is any port
	PortBits int `json:"port-bits,omitempty,omitzero"`

	// Proto TCP, UDP, SCTP, ICMP, ICMPv6, a number, or ANY
	Proto   string `json:"proto,omitempty,omitzero"`
	RuleSet int    `json:"rule-set"`

	// Verdict Of an event it is audit where policy refused and audit mode let pass
	Verdict PolicyVerdict `json:"verdict,omitempty,omitzero"`
}

// MapPolicyDirection defines model for MapPolicy.Direction.
type MapPolicyDirection string

// MapService Hawser: row of the map services
type MapService struct {
	AffinitySeconds int `json:"affinity-seconds,omitempty,omitzero"`

	// Algorithm random or maglev
	Algorithm string   `json:"algorithm,omitempty,omitzero"`
	Backends  []string `json:"backends,omitempty,omitzero"`

	// Elsewhere There are backends, but none to which it may lead
	Elsewhere bool `json:"elsewhere,omitempty,omitzero"`

	// Forwarding How clients outside reach a pod on another node: snat or dsr; empty for the rest
	Forwarding string `json:"forwarding,omitempty,omitzero"`

	// Frontend Address and port
	Frontend string `json:"frontend"`
	ID       int    `json:"id,omitempty,omitzero"`
	Proto    string `json:"proto"`

	// Restricted It serves only clients in the source-ranges
	Restricted bool `json:"restricted,omitempty,omitzero"`

	// Scope Whose packets it leads: those from inside or outside of the cluster, node, those of the node's own processes alone, or other-node, those of pods to any other node
	Scope        string   `json:"scope"`
	SourceRanges []string `json:"source-ranges,omitempty,omitzero"`
}

// MapShare Hawser: row of the map shares: what is held of conntrack on behalf of an endpoint
type MapShare struct {
	// Endpoint 0 is the node itself and hosts outside
	Endpoint int `json:"endpoint"`

	// Entries Flows, and what else is remembered of them: as many as the last collection counted, and those made since
	Entries int `json:"entries"`

	// Excess Entries that were made beyond the share, in all
	Excess int `json:"excess"`

	// Share Entries beyond as many displace others that are beyond a share; 0 for no bound
	Share int `json:"share"`
}

// Masquerading defines model for Masquerading.
type Masquerading struct {
	Enabled          bool             `json:"enabled,omitempty,omitzero"`
	EnabledProtocols EnabledProtocols `json:"enabledProtocols,omitempty,omitzero"`

	// Mode BPF or iptables
	Mode                string `json:"mode,omitempty,omitzero"`
	SNATExclusionCIDRv4 string `json:"snat-exclusion-cidr-v4,omitempty,omitzero"`
	SNATExclusionCIDRv6 string `json:"snat-exclusion-cidr-v6,omitempty,omitzero"`
}

// Metric A metric with its labels
type Metric struct {
	Labels map[string]string `json:"labels,omitempty,omitzero"`
	Name   string            `json:"name,omitempty,omitzero"`
	Value  float64           `json:"value,omitempty,omitzero"`
}

// ModeStatus A feature that has modes
type ModeStatus struct {
	// Mode Disabled or Enabled
	Mode string `json:"mode,omitempty,omitzero"`
}

// MonitorEvent Hawser: an event of a packet, or a gap in the events
type MonitorEvent struct {
	// Destination Address
	Destination         string `json:"destination,omitempty,omitzero"`
	DestinationIdentity int    `json:"destination-identity,omitempty,omitzero"`

	// DestinationLabels Labels written source:key=value
	DestinationLabels Labels `json:"destination-labels,omitempty,omitzero"`

	// DestinationPort For ICMP the message type
	DestinationPort int `json:"destination-port,omitempty,omitzero"`

	// Direction ingress or egress as the endpoint sees it
	Direction string `json:"direction,omitempty,omitzero"`

	// Endpoint Number of the local endpoint concerned
	Endpoint       int `json:"endpoint,omitempty,omitzero"`
	InterfaceIndex int `json:"interface-index,omitempty,omitzero"`

	// Length Bytes of the packet
	Length int `json:"length,omitempty,omitzero"`

	// Lost For lost: events lost since the last such report
	Lost uint64 `json:"lost,omitempty,omitzero"`

	// Point For trace: where the packet was seen, as from-pod, to-pod, from-overlay, to-overlay, to-host
	Point string `json:"point,omitempty,omitzero"`
	Proto string `json:"proto,omitempty,omitzero"`

	// Reason For drop: why; for policy-verdict: what decided
	Reason string `json:"reason,omitempty,omitzero"`

	// Source Address
	Source         string `json:"source,omitempty,omitzero"`
	SourceIdentity int    `json:"source-identity,omitempty,omitzero"`

	// SourceLabels Labels written source:key=value
	SourceLabels Labels           `json:"source-labels,omitempty,omitzero"`
	SourcePort   int              `json:"source-port,omitempty,omitzero"`
	Time         time.Time        `json:"time"`
	Type         MonitorEventType `json:"type"`

	// Verdict Of an event it is audit where policy refused and audit mode let pass
	Verdict PolicyVerdict `json:"verdict,omitempty,omitzero"`
}

// MonitorEventType defines model for MonitorEventType.
type MonitorEventType string

// MonitorStatus State of the event buffer
type MonitorStatus struct {
	Cpus int `json:"cpus,omitempty,omitzero"`

	// Lost Events lost since the agent started
	Lost     int `json:"lost,omitempty,omitzero"`
	Npages   int `json:"npages,omitempty,omitzero"`
	Pagesize int `json:"pagesize,omitempty,omitzero"`

	// Unknown Events that could not be read
	Unknown int `json:"unknown,omitempty,omitzero"`
}

// NameManager defines model for NameManager.
type NameManager struct {
	DNSPollNames        []string                 `json:"DNSPollNames,omitempty,omitzero"`
	FQDNPolicySelectors []map[string]interface{} `json:"FQDNPolicySelectors,omitempty,omitzero"`
}

// NamedPort defines model for NamedPort.
type NamedPort struct {
	Name     string `json:"name,omitempty,omitzero"`
	Port     int    `json:"port,omitempty,omitzero"`
	Protocol string `json:"protocol,omitempty,omitzero"`
}

// NodeAddressing The node's own addresses in the pod network
type NodeAddressing struct {
	IPv4 NodeAddressingElement `json:"ipv4,omitempty,omitzero"`
	IPv6 NodeAddressingElement `json:"ipv6,omitempty,omitzero"`
}

// NodeAddressingElement defines model for NodeAddressingElement.
type NodeAddressingElement struct {
	AddressType string `json:"address-type,omitempty,omitzero"`
	AllocRange  string `json:"alloc-range,omitempty,omitzero"`
	Enabled     bool   `json:"enabled,omitempty,omitzero"`
	IP          string `json:"ip,omitempty,omitzero"`
}

// NodeElement defines model for NodeElement.
type NodeElement struct {
	// HealthEndpointAddress The node's own addresses in the pod network
	HealthEndpointAddress NodeAddressing `json:"health-endpoint-address,omitempty,omitzero"`

	// IngressAddress The node's own addresses in the pod network
	IngressAddress NodeAddressing `json:"ingress-address,omitempty,omitzero"`
	Name           string         `json:"name,omitempty,omitzero"`

	// PrimaryAddress The node's own addresses in the pod network
	PrimaryAddress     NodeAddressing          `json:"primary-address,omitempty,omitzero"`
	SecondaryAddresses []NodeAddressingElement `json:"secondary-addresses,omitempty,omitzero"`
	Source             string                  `json:"source,omitempty,omitzero"`
}

// NodeID defines model for NodeID.
type NodeID struct {
	ID  int      `json:"id"`
	IPs []string `json:"ips"`
}

// PartStatus Hawser: health of one part of the agent
type PartStatus struct {
	Msg  string `json:"msg,omitempty,omitzero"`
	Name string `json:"name"`

	// Since When it came into this state
	Since time.Time `json:"since,omitempty,omitzero"`

	// State Health of a part
	State State `json:"state"`
}

// Policy defines model for Policy.
type Policy struct {
	// Policy JSON text of the rules in force
	Policy string `json:"policy,omitempty,omitzero"`

	// Revision Grows with every change
	Revision int `json:"revision,omitempty,omitzero"`
}

// PolicyEnforcement Which endpoints enforce policy
type PolicyEnforcement string

// PolicyFile Hawser: a file of the static policy directory
type PolicyFile struct {
	// Error What is wrong and where
	Error string `json:"error,omitempty,omitzero"`

	// InForce Something of it is enforced: this version, or if it is faulty the last good one, or without loaded what of it can be
	InForce bool `json:"in-force,omitempty,omitzero"`

	// Loaded When the version in force was read
	Loaded   time.Time          `json:"loaded,omitempty,omitzero"`
	Path     string             `json:"path"`
	Policies []PolicyFilePolicy `json:"policies,omitempty,omitzero"`

	// State faulty: the file as it is now was refused
	State PolicyFileState `json:"state"`
}

// PolicyFileState faulty: the file as it is now was refused
type PolicyFileState string

// PolicyFilePolicy Hawser: a policy object in a file
type PolicyFilePolicy struct {
	Description string `json:"description,omitempty,omitzero"`
	Kind        string `json:"kind"`
	Name        string `json:"name"`
	Namespace   string `json:"namespace,omitempty,omitzero"`

	// Rules Number of rules in spec and specs
	Rules int `json:"rules,omitempty,omitzero"`
}

// PolicyRule defines model for PolicyRule.
type PolicyRule struct {
	DerivedFromRules []Labels            `json:"derived-from-rules,omitempty,omitzero"`
	Rule             string              `json:"rule,omitempty,omitzero"`
	RulesBySelector  map[string][]Labels `json:"rules-by-selector,omitempty,omitzero"`
}

// PolicyTrace Hawser: why one side would reach the other
type PolicyTrace struct {
	DPort int `json:"dport,omitempty,omitzero"`

	// Egress The outcome of one side's rules
	Egress PolicyTraceDirection `json:"egress,omitempty,omitzero"`
	From   PolicyTracePeer      `json:"from"`

	// Ingress The outcome of one side's rules
	Ingress PolicyTraceDirection `json:"ingress,omitempty,omitzero"`
	Proto   string               `json:"proto,omitempty,omitzero"`
	To      PolicyTracePeer      `json:"to"`

	// Verdict Of an event it is audit where policy refused and audit mode let pass
	Verdict PolicyVerdict `json:"verdict"`
}

// PolicyTraceDirection The outcome of one side's rules
type PolicyTraceDirection struct {
	// Enforced Whether what no rule allows is dropped
	Enforced bool `json:"enforced"`

	// Reason The verdict in a sentence
	Reason string            `json:"reason,omitempty,omitzero"`
	Steps  []PolicyTraceStep `json:"steps,omitempty,omitzero"`

	// Verdict Of an event it is audit where policy refused and audit mode let pass
	Verdict PolicyVerdict `json:"verdict"`
}

// PolicyTracePeer defines model for PolicyTracePeer.
type PolicyTracePeer struct {
	// Endpoint Number of the local endpoint
	Endpoint int `json:"endpoint,omitempty,omitzero"`
	Identity int `json:"identity,omitempty,omitzero"`

	// Labels Labels written source:key=value
	Labels Labels `json:"labels,omitempty,omitzero"`

	// Name As it was asked for
	Name string `json:"name,omitempty,omitzero"`
}

// PolicyTraceStep The outcome of one rule
type PolicyTraceStep struct {
	// Effect pass: the question is left to the next tier
	Effect PolicyTraceStepEffect `json:"effect"`

	// Labels Labels written source:key=value
	Labels Labels `json:"labels,omitempty,omitzero"`

	// Reason Why it matched or what did not match
	Reason string `json:"reason,omitempty,omitzero"`

	// Rule Name of the policy and place in it, as default/web ingress[0]
	Rule string `json:"rule"`
}

// PolicyTraceStepEffect pass: the question is left to the next tier
type PolicyTraceStepEffect string

// PolicyVerdict Of an event it is audit where policy refused and audit mode let pass
type PolicyVerdict string

// RemoteCluster defines model for RemoteCluster.
type RemoteCluster struct {
	Config    RemoteClusterConfig `json:"config,omitempty,omitzero"`
	Connected bool                `json:"connected,omitempty,omitzero"`

	// LastError Hawser: what keeps the cluster from being followed
	LastError     string    `json:"last-error,omitempty,omitzero"`
	LastFailure   time.Time `json:"last-failure,omitempty,omitzero"`
	Name          string    `json:"name,omitempty,omitzero"`
	NumEndpoints  int       `json:"num-endpoints,omitempty,omitzero"`
	NumFailures   int       `json:"num-failures,omitempty,omitzero"`
	NumIdentities int       `json:"num-identities,omitempty,omitzero"`
	NumNodes      int       `json:"num-nodes,omitempty,omitzero"`

	// NumRefused Hawser: objects that are not believed
	NumRefused        int  `json:"num-refused,omitempty,omitzero"`
	NumServiceExports int  `json:"num-service-exports,omitempty,omitzero"`
	NumSharedServices int  `json:"num-shared-services,omitempty,omitzero"`
	Ready             bool `json:"ready,omitempty,omitzero"`

	// Since Hawser: when connected last changed
	Since  time.Time `json:"since,omitempty,omitzero"`
	Status string    `json:"status,omitempty,omitzero"`
}

// RemoteClusterConfig defines model for RemoteClusterConfig.
type RemoteClusterConfig struct {
	ClusterID int  `json:"cluster-id,omitempty,omitzero"`
	Required  bool `json:"required,omitempty,omitzero"`
	Retrieved bool `json:"retrieved,omitempty,omitzero"`
}

// Routing defines model for Routing.
type Routing struct {
	// InterHostRoutingMode Native or Tunnel
	InterHostRoutingMode string `json:"inter-host-routing-mode,omitempty,omitzero"`

	// IntraHostRoutingMode BPF or Legacy
	IntraHostRoutingMode string `json:"intra-host-routing-mode,omitempty,omitzero"`
	TunnelProtocol       string `json:"tunnel-protocol,omitempty,omitzero"`
}

// SelectorIdentityMapping defines model for SelectorIdentityMapping.
type SelectorIdentityMapping struct {
	Identities []int   `json:"identities,omitempty,omitzero"`
	Labels     []Label `json:"labels,omitempty,omitzero"`
	Selector   string  `json:"selector,omitempty,omitzero"`
	Users      int     `json:"users,omitempty,omitzero"`
}

// Service defines model for Service.
type Service struct {
	Spec   ServiceSpec   `json:"spec,omitempty,omitzero"`
	Status ServiceStatus `json:"status,omitempty,omitzero"`
}

// ServiceFlags defines model for ServiceFlags.
type ServiceFlags struct {
	// AffinitySeconds Hawser: how long a client keeps its backend; 0 if it need not
	AffinitySeconds int `json:"affinitySeconds,omitempty,omitzero"`

	// Algorithm Hawser: how a backend is chosen: random or maglev
	Algorithm string `json:"algorithm,omitempty,omitzero"`

	// Elsewhere Hawser: there are backends, but none to which the frontend may lead; clients get no answer
	Elsewhere bool `json:"elsewhere,omitempty,omitzero"`

	// Forwarding Hawser: how clients outside reach a pod on another node: snat or dsr; empty for the rest
	Forwarding string `json:"forwarding,omitempty,omitzero"`
	Name       string `json:"name,omitempty,omitzero"`
	Namespace  string `json:"namespace,omitempty,omitzero"`

	// PortName Hawser: name of the service's port
	PortName string `json:"portName,omitempty,omitzero"`

	// Restricted Hawser: the frontend serves only clients in the sourceRanges
	Restricted bool `json:"restricted,omitempty,omitzero"`

	// SourceRanges Hawser: whom the frontend serves, if it is restricted
	SourceRanges []string `json:"sourceRanges,omitempty,omitzero"`

	// TrafficPolicy Cluster or Local
	TrafficPolicy string `json:"trafficPolicy,omitempty,omitzero"`
	Type          string `json:"type,omitempty,omitzero"`
}

// ServiceSpec defines model for ServiceSpec.
type ServiceSpec struct {
	BackendAddresses []BackendAddress `json:"backend-addresses,omitempty,omitzero"`
	Flags            ServiceFlags     `json:"flags,omitempty,omitzero"`
	FrontendAddress  FrontendAddress  `json:"frontend-address"`

	// ID The same for all frontends of a service's port
	ID int `json:"id,omitempty,omitzero"`
}

// ServiceStatus defines model for ServiceStatus.
type ServiceStatus struct {
	Realized ServiceSpec `json:"realized,omitempty,omitzero"`
}

// State Health of a part
type State string

// Status Health of a part with the reason
type Status struct {
	Msg string `json:"msg,omitempty,omitzero"`

	// State Health of a part
	State State `json:"state,omitempty,omitzero"`
}

// StatusResponse Health of the agent and its parts
type StatusResponse struct {
	// AttachMode tc or tcx
	AttachMode string `json:"attach-mode,omitempty,omitzero"`

	// AuthCertificateProvider Health of a part with the reason
	AuthCertificateProvider Status       `json:"auth-certificate-provider,omitempty,omitzero"`
	BPFMaps                 BPFMapStatus `json:"bpf-maps,omitempty,omitzero"`

	// Cilium Health of a part with the reason
	Cilium      Status            `json:"cilium,omitempty,omitzero"`
	ClientID    int               `json:"client-id,omitempty,omitzero"`
	Cluster     ClusterStatus     `json:"cluster,omitempty,omitzero"`
	ClusterMesh ClusterMeshStatus `json:"cluster-mesh,omitempty,omitzero"`
	CNIChaining CNIChainingStatus `json:"cni-chaining,omitempty,omitzero"`

	// CNIFile Health of a part with the reason
	CNIFile                Status             `json:"cni-file,omitempty,omitzero"`
	ConfiguredDatapathMode string             `json:"configured-datapath-mode,omitempty,omitzero"`
	Controllers            []ControllerStatus `json:"controllers,omitempty,omitzero"`

	// DatapathMode Kind of link between a pod and its node
	DatapathMode DatapathMode `json:"datapath-mode,omitempty,omitzero"`

	// Encryption Encryption between nodes; there is none
	Encryption EncryptionStatus `json:"encryption,omitempty,omitzero"`

	// HostFirewall A feature that has modes
	HostFirewall ModeStatus `json:"host-firewall,omitempty,omitzero"`

	// Hubble Health of a part with the reason
	Hubble        Status        `json:"hubble,omitempty,omitzero"`
	IdentityRange IdentityRange `json:"identity-range,omitempty,omitzero"`

	// IPAM Addresses given out
	IPAM IPAMStatus `json:"ipam,omitempty,omitzero"`

	// IPv4BigTCP Packets of TCP beyond 64 KiB inside the node
	IPv4BigTCP BigTCPStatus `json:"ipv4-big-tcp,omitempty,omitzero"`

	// IPv6BigTCP Packets of TCP beyond 64 KiB inside the node
	IPv6BigTCP           BigTCPStatus         `json:"ipv6-big-tcp,omitempty,omitzero"`
	KubeProxyReplacement KubeProxyReplacement `json:"kube-proxy-replacement,omitempty,omitzero"`
	Kubernetes           K8SStatus            `json:"kubernetes,omitempty,omitzero"`

	// Kvstore Health of a part with the reason
	Kvstore      Status       `json:"kvstore,omitempty,omitzero"`
	Masquerading Masquerading `json:"masquerading,omitempty,omitzero"`

	// NodeMonitor State of the event buffer
	NodeMonitor MonitorStatus `json:"nodeMonitor,omitempty,omitzero"`

	// Parts Hawser: every part of the agent
	Parts   []PartStatus `json:"parts,omitempty,omitzero"`
	Routing Routing      `json:"routing,omitempty,omitzero"`

	// Stale Parts that have not reported in time and when they last did
	Stale map[string]time.Time `json:"stale,omitempty,omitzero"`
}

// EndpointID defines model for EndpointID.
type EndpointID = string

// GetClusterNodesParams defines parameters for GetClusterNodes.
type GetClusterNodesParams struct {
	// ClientID Number a former answer gave
	ClientID int `json:"client-id,omitempty,omitzero"`
}

// GetHealthzParams defines parameters for GetHealthz.
type GetHealthzParams struct {
	// Brief Leave out everything but the overall state
	Brief bool `json:"brief,omitempty,omitzero"`

	// RequireK8SConnectivity Count a lost Kubernetes API as a failure
	RequireK8SConnectivity *bool `json:"require-k8s-connectivity,omitempty"`
}

// ListIPsParams defines parameters for ListIPs.
type ListIPsParams struct {
	// CIDR Only addresses inside this prefix
	CIDR string `form:"cidr,omitempty" json:"cidr,omitempty,omitzero"`
}

// AllocateIPParams defines parameters for AllocateIP.
type AllocateIPParams struct {
	// Family ipv4, ipv6 or empty for both; other values are refused
	Family string `form:"family,omitempty" json:"family,omitempty,omitzero"`

	// Owner Who asks; shown in the status
	Owner string `form:"owner,omitempty" json:"owner,omitempty,omitzero"`

	// Pool Pool to take from
	Pool string `form:"pool,omitempty" json:"pool,omitempty,omitzero"`

	// Expiration Give the address back unless an endpoint claims it with the expiration UUID returned
	Expiration bool `json:"expiration,omitempty,omitzero"`
}

// ReleaseIPParams defines parameters for ReleaseIP.
type ReleaseIPParams struct {
	// Pool Pool the address is in
	Pool string `form:"pool,omitempty" json:"pool,omitempty,omitzero"`
}

// ReserveIPParams defines parameters for ReserveIP.
type ReserveIPParams struct {
	// Owner Who asks; shown in the status
	Owner string `form:"owner,omitempty" json:"owner,omitempty,omitzero"`

	// Pool Pool the address is in
	Pool string `form:"pool,omitempty" json:"pool,omitempty,omitzero"`
}

// MonitorParams defines parameters for Monitor.
type MonitorParams struct {
	// Type Kinds to send, separated by commas: drop, policy-verdict, trace. Empty means all. Lost events are always reported.
	Type string `form:"type,omitempty" json:"type,omitempty,omitzero"`
}

// TracePolicyParams defines parameters for TracePolicy.
type TracePolicyParams struct {
	// From The side that opens the flow
	From string `form:"from" json:"from"`

	// To The side it is opened to
	To string `form:"to" json:"to"`

	// DPort Destination port by number or name; type for ICMP
	DPort string `form:"dport,omitempty" json:"dport,omitempty,omitzero"`

	// Proto TCP, UDP, SCTP, ICMP or ICMPv6
	Proto string `form:"proto,omitempty" json:"proto,omitempty,omitzero"`
}

// PatchConfigJSONRequestBody defines body for PatchConfig for application/json ContentType.
type PatchConfigJSONRequestBody = DaemonConfigurationSpec

// DeleteEndpointsJSONRequestBody defines body for DeleteEndpoints for application/json ContentType.
type DeleteEndpointsJSONRequestBody = EndpointBatchDeleteRequest

// ListEndpointsJSONRequestBody defines body for ListEndpoints for application/json ContentType.
type ListEndpointsJSONRequestBody = Labels

// PatchEndpointJSONRequestBody defines body for PatchEndpoint for application/json ContentType.
type PatchEndpointJSONRequestBody = EndpointChangeRequest

// CreateEndpointJSONRequestBody defines body for CreateEndpoint for application/json ContentType.
type CreateEndpointJSONRequestBody = EndpointChangeRequest

// PatchEndpointConfigJSONRequestBody defines body for PatchEndpointConfig for application/json ContentType.
type PatchEndpointConfigJSONRequestBody = EndpointConfigurationSpec

// PatchEndpointLabelsJSONRequestBody defines body for PatchEndpointLabels for application/json ContentType.
type PatchEndpointLabelsJSONRequestBody = LabelConfigurationSpec

// ListIdentitiesJSONRequestBody defines body for ListIdentities for application/json ContentType.
type ListIdentitiesJSONRequestBody = Labels

// ListIPsJSONRequestBody defines body for ListIPs for application/json ContentType.
type ListIPsJSONRequestBody = Labels
