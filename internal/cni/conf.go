package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	cnitypes "github.com/containernetworking/cni/pkg/types"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/validate"
)

// Bounds of what is accepted from the runtime.
const (
	maxConfBytes  = 1 << 20
	maxArgsBytes  = 64 << 10
	maxLabels     = 128
	maxLabelBytes = 317 // a qualified Kubernetes name: 253 + "/" + 63
	maxNameBytes  = 253
)

// netConf is the plugin's configuration on standard input.
type netConf struct {
	CNIVersion string        `json:"cniVersion"`
	Name       string        `json:"name"`
	Type       string        `json:"type"`
	DNS        cnitypes.DNS  `json:"dns"`
	PrevResult jsonPresent   `json:"prevResult"`
	IPAM       ipamConf      `json:"ipam"`
	Args       runtimeArgs   `json:"args"`
	Attached   *[]attachment `json:"cni.dev/valid-attachments"`
	// AttachedOld is the key of drafts of the specification.
	AttachedOld *[]attachment `json:"cni.dev/attachments"`

	// Capabilities are what the runtime shall pass, RuntimeConfig what it passed (CNI specification
	// 1.1, section 3).
	Capabilities  map[string]any `json:"capabilities"`
	RuntimeConfig map[string]any `json:"runtimeConfig"`

	// Of a cloud's interfaces.
	ENI          any `json:"eni"`
	Azure        any `json:"azure"`
	AlibabaCloud any `json:"alibaba-cloud"`

	ChainingMode string `json:"chaining-mode"`
	Debug        bool   `json:"enable-debug"`
	LogFile      string `json:"log-file"`
	// SocketPath is the agent's address: a path, unix:///path or tcp://host:port.
	SocketPath string `json:"socket-path"`
	// SyncBuild false would have ADD return before the pod's policy is enforced.
	SyncBuild *bool `json:"sync-build-endpoint"`
}

// ipamConf is the section of address management. With a type all of it is for the plugin of that
// name; without, the agent reads some of it where a cloud gives addresses.
type ipamConf map[string]any

func (c ipamConf) mode() string {
	t, _ := c["type"].(string)
	return t
}

type runtimeArgs struct {
	CNI struct {
		Labels []keyValue `json:"labels"`
	} `json:"cni"`
}

type keyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// attachment is one that the runtime wants to keep (GC).
type attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// jsonPresent keeps a JSON value for later and reports whether there was one.
type jsonPresent []byte

func (p *jsonPresent) UnmarshalJSON(b []byte) error {
	if string(b) != "null" {
		*p = append((*p)[:0], b...)
	}
	return nil
}

// parseConf reads the configuration. It refuses what it can't do rather than to ignore it.
func parseConf(stdin []byte) (netConf, error) {
	var c netConf
	if len(stdin) > maxConfBytes {
		return c, fmt.Errorf("the network configuration is longer than %d bytes", maxConfBytes)
	}
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, fmt.Errorf("the network configuration is malformed: %w", err)
	}
	if strings.ContainsRune(c.SocketPath, 0) || strings.ContainsRune(c.LogFile, 0) {
		return c, errors.New("socket-path or log-file holds a zero byte")
	}
	return c, nil
}

// canAdd reports what of the configuration rules an ADD out.
func (c netConf) canAdd() error {
	var errs validate.Errors
	if len(c.PrevResult) > 0 {
		errs.Add("the configuration carries a prevResult: Hawser is the plugin that makes the interface" +
			" and can't be chained behind another; put it first in the plugin list")
	}
	errs.If(c.ChainingMode != "" && c.ChainingMode != "none", "chaining-mode %q is not supported: remove it", c.ChainingMode)
	errs.If(c.SyncBuild != nil && !*c.SyncBuild, "sync-build-endpoint false is not supported: ADD returns when the pod's policy is enforced; remove it")
	// What would change a pod's connection, its limits or who guards it must not be passed over.
	for _, name := range slices.Sorted(maps.Keys(c.Capabilities)) {
		if on := c.Capabilities[name]; on != false && on != nil && !c.forDelegate(name) {
			errs.Add("capability %s is not supported: remove it, or declare it for a plugin further down the list", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.RuntimeConfig)) {
		errs.If(!c.forDelegate(name), "runtimeConfig.%s is not supported: remove the capability %s", name, name)
	}
	return errs.Err()
}

// agentKeys are the keys of the section ipam that the agent reads where a cloud gives addresses
// (--read-cni-conf): those of Wanted.Read in internal/agent/instance.
var agentKeys = []string{"min-allocate", "pre-allocate", "max-allocate", "max-above-watermark", "static-ip-tags"}

// suits reports what of the configuration rules an ADD out with an agent whose --ipam is mode. What
// is the agent's to read is taken where it reads it.
func (c netConf) suits(mode string) error {
	var errs []error
	clouds := []struct {
		name, mode string
		conf       any
	}{{"eni", "eni", c.ENI}, {"azure", "azure", c.Azure}, {"alibaba-cloud", "alibabacloud", c.AlibabaCloud}}
	ofCloud := false
	for _, cloud := range clouds {
		ofCloud = ofCloud || cloud.mode == mode
		if fields, object := cloud.conf.(map[string]any); cloud.conf != nil && (!object || len(fields) > 0 && cloud.mode != mode) {
			errs = append(errs, fmt.Errorf("%s is not supported: the agent's --ipam is %q, and pods have no interfaces, addresses or security groups of that cloud; remove it",
				cloud.name, mode))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.IPAM)) {
		if key != "type" && c.IPAM.mode() == "" && !(ofCloud && slices.Contains(agentKeys, key)) {
			errs = append(errs, fmt.Errorf("ipam.%s is not supported: the agent allocates addresses; remove it", key))
		}
	}
	return errors.Join(errs...)
}

// forDelegate reports whether a capability is one of IPAM plugins, and there is one.
func (c netConf) forDelegate(capability string) bool {
	return capability == "ips" && c.IPAM.mode() != ""
}

// reservedLabel reports whether a key describes where a pod belongs. Only the agent may set those,
// from its own sources.
func reservedLabel(key string) bool {
	return labels.Owned(key) || key == labels.SourceReserved || strings.HasPrefix(key, labels.SourceReserved+".")
}

// labels returns the pod labels that the runtime passed, as "cni:key=value".
func (c netConf) labels() ([]string, error) {
	if len(c.Args.CNI.Labels) > maxLabels {
		return nil, fmt.Errorf("args.cni.labels holds %d labels, at most %d are allowed", len(c.Args.CNI.Labels), maxLabels)
	}
	seen := map[string]bool{}
	out := make([]string, 0, len(c.Args.CNI.Labels))
	for _, kv := range c.Args.CNI.Labels {
		switch {
		case !labelPart(kv.Key) || kv.Key == "" || strings.ContainsAny(kv.Key, "=:"):
			return nil, fmt.Errorf("args.cni.labels: %q is not a label key", kv.Key)
		case !labelPart(kv.Value):
			return nil, fmt.Errorf("args.cni.labels: label %s has the malformed value %q", kv.Key, kv.Value)
		case reservedLabel(kv.Key):
			return nil, fmt.Errorf("args.cni.labels: label %s is reserved for the agent", kv.Key)
		case seen[kv.Key]:
			return nil, fmt.Errorf("args.cni.labels: label %s is given twice", kv.Key)
		}
		seen[kv.Key] = true
		out = append(out, "cni:"+kv.Key+"="+kv.Value)
	}
	return out, nil
}

// labelPart reports whether s may be (part of) a label: bounded, printable and without the ";" that
// separates labels in keys of the cluster's store.
func labelPart(s string) bool {
	return len(s) <= maxLabelBytes && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == ';' || unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// podArgs is the pod in CNI_ARGS; all fields are empty outside of Kubernetes.
type podArgs struct {
	Name, Namespace, UID string
}

// parseArgs reads CNI_ARGS, "KEY=VALUE;KEY=VALUE". Unknown keys are ignored whether or not
// IgnoreUnknown is set: runtimes add keys of their own.
func parseArgs(s string) (podArgs, error) {
	var a podArgs
	if len(s) > maxArgsBytes {
		return a, fmt.Errorf("CNI_ARGS is longer than %d bytes", maxArgsBytes)
	}
	for pair := range strings.SplitSeq(s, ";") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return podArgs{}, fmt.Errorf("CNI_ARGS: %q is not of the form KEY=VALUE", pair)
		}
		var into *string
		switch strings.TrimSpace(key) {
		case "K8S_POD_NAME":
			into = &a.Name
		case "K8S_POD_NAMESPACE":
			into = &a.Namespace
		case "K8S_POD_UID":
			into = &a.UID
		default:
			continue
		}
		value = strings.TrimSpace(value)
		if len(value) > maxNameBytes || !utf8.ValidString(value) || strings.ContainsFunc(value, notInName) {
			return podArgs{}, fmt.Errorf("CNI_ARGS: %s has the malformed value %q", key, value)
		}
		*into = value
	}
	if (a.Name == "") != (a.Namespace == "") {
		return podArgs{}, errors.New("CNI_ARGS: K8S_POD_NAME and K8S_POD_NAMESPACE come only together")
	}
	return a, nil
}

func notInName(r rune) bool { return r == '/' || unicode.IsSpace(r) || !unicode.IsPrint(r) }

// owner is how the agent names the holder of the pod's addresses.
func (a podArgs) owner(containerID string) string {
	if a.Name == "" {
		return containerID
	}
	return a.Namespace + "/" + a.Name
}
