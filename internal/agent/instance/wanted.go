package instance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/validate"
)

// Wanted is what a node is to have of the cloud by the configuration of its agent. Unset fields are
// left as they are in the CiliumNode, so that an administrator may write them there.
type Wanted struct {
	// MinAllocate, PreAllocate, MaxAllocate and MaxAboveWatermark are those of spec.ipam; 0 is
	// unset.
	MinAllocate, PreAllocate, MaxAllocate, MaxAboveWatermark int
	// StaticIPTags are the tags of the public addresses of which this node is to have one.
	StaticIPTags map[string]string

	ENI          v2.ENISpec
	Azure        v2.AzureSpec
	AlibabaCloud v2.AlibabaCloudSpec
}

// Flags binds it to command-line flags, whose names are Cilium's.
func (w *Wanted) Flags(fs *pflag.FlagSet) {
	fs.IntVar(&w.MinAllocate, "ipam-min-allocate", w.MinAllocate, "minimum number of cloud addresses of this node; 0 leaves it to the CiliumNode")
	fs.IntVar(&w.PreAllocate, "ipam-pre-allocate", w.PreAllocate, fmt.Sprintf("cloud addresses that this node keeps free; 0 leaves it to the CiliumNode, whose default is %d", v2.DefaultPreAllocate))
	fs.IntVar(&w.MaxAllocate, "ipam-max-allocate", w.MaxAllocate, "maximum number of cloud addresses of this node; 0 leaves it to the CiliumNode")
	fs.Var(optionalInt(&w.ENI.FirstInterfaceIndex), "eni-first-interface-index", "first interface of the AWS instance whose addresses pods get")
	fs.Var(optionalBool(&w.ENI.UsePrimaryAddress), "eni-use-primary-address", "pods get the primary addresses of further AWS interfaces, too")
	fs.Var(optionalBool(&w.ENI.DisablePrefixDelegation), "eni-disable-prefix-delegation", "no prefixes are delegated to this AWS instance")
	fs.Var(optionalBool(&w.ENI.DeleteOnTermination), "eni-delete-on-termination", "AWS interfaces that are made for this node end with its instance")
	for _, name := range []string{"eni-use-primary-address", "eni-disable-prefix-delegation", "eni-delete-on-termination"} {
		fs.Lookup(name).NoOptDefVal = "true"
	}
	for _, l := range []struct {
		into  *[]string
		name  string
		usage string
	}{
		{&w.ENI.SubnetIDs, "eni-subnet-ids", "AWS subnets for this node's new interfaces"},
		{&w.ENI.SecurityGroups, "eni-security-groups", "AWS security groups of this node's new interfaces"},
		{&w.AlibabaCloud.VSwitches, "alibabacloud-vswitches", "Alibaba Cloud vSwitches for this node's new interfaces"},
		{&w.AlibabaCloud.SecurityGroups, "alibabacloud-security-groups", "Alibaba Cloud security groups of this node's new interfaces"},
	} {
		fs.StringSliceVar(l.into, l.name, *l.into, l.usage)
	}
	for _, l := range []struct {
		into  *map[string]string
		name  string
		usage string
	}{
		{&w.StaticIPTags, "ipam-static-ip-tags", "tags of the AWS elastic IPs of which this node is to have one"},
		{&w.ENI.SubnetTags, "eni-subnet-tags", "tags of the AWS subnets for this node's new interfaces"},
		{&w.ENI.SecurityGroupTags, "eni-security-group-tags", "tags of the AWS security groups of this node's new interfaces"},
		{&w.ENI.ExcludeInterfaceTags, "eni-exclude-interface-tags", "tags of AWS interfaces whose addresses pods do not get"},
		{&w.AlibabaCloud.VSwitchTags, "alibabacloud-vswitch-tags", "tags of the Alibaba Cloud vSwitches for this node's new interfaces"},
		{&w.AlibabaCloud.SecurityGroupTags, "alibabacloud-security-group-tags", "tags of the Alibaba Cloud security groups of this node's new interfaces"},
	} {
		fs.StringToStringVar(l.into, l.name, *l.into, l.usage)
	}
	fs.StringVar(&w.Azure.InterfaceName, "azure-interface-name", w.Azure.InterfaceName, "use only addresses of this interface of the Azure machine for pods")
}

// Validate reports all faults.
func (w *Wanted) Validate() error {
	var errs validate.Errors
	for name, n := range map[string]int{
		"min-allocate": w.MinAllocate, "pre-allocate": w.PreAllocate, "max-allocate": w.MaxAllocate, "max-above-watermark": w.MaxAboveWatermark,
	} {
		errs.If(n < 0, "ipam %s: %d is below 0", name, n)
	}
	errs.If(w.MaxAllocate > 0 && w.MinAllocate > w.MaxAllocate, "ipam min-allocate is %d, and max-allocate %d", w.MinAllocate, w.MaxAllocate)
	if i := w.ENI.FirstInterfaceIndex; i != nil && *i < 0 {
		errs.Add("eni first-interface-index: %d is below 0", *i)
	}
	return errs.Err()
}

// sections are those of a CNI configuration that are the agent's to read.
var sections = []string{"ipam", "eni", "azure", "alibaba-cloud"}

// Read applies the sections of a CNI configuration, which take precedence over the flags. An
// unknown key, or one that the operator or the metadata set, is refused, because it would have no
// effect. The plugin reads the same file, and refuses the keys of ipam that are not among its
// agentKeys (internal/cni).
func (w *Wanted) Read(conf map[string]json.RawMessage) error {
	var ipam struct {
		MinAllocate       int               `json:"min-allocate"`
		PreAllocate       int               `json:"pre-allocate"`
		MaxAllocate       int               `json:"max-allocate"`
		MaxAboveWatermark int               `json:"max-above-watermark"`
		StaticIPTags      map[string]string `json:"static-ip-tags"`
	}
	var eni v2.ENISpec
	var azure v2.AzureSpec
	var alibaba v2.AlibabaCloudSpec
	into := map[string]any{"ipam": &ipam, "eni": &eni, "azure": &azure, "alibaba-cloud": &alibaba}
	var errs []error
	for _, name := range sections {
		raw, ok := conf[name]
		if !ok {
			continue
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(into[name]); err != nil {
			errs = append(errs, fmt.Errorf("section %s: %s", name, strings.TrimPrefix(err.Error(), "json: ")))
		}
	}
	for what, is := range map[string]bool{
		"eni.instance-type, eni.availability-zone, eni.vpc-id and eni.node-subnet-id": eni.InstanceType+eni.AvailabilityZone+eni.VpcID+eni.NodeSubnetID != "",
		"alibaba-cloud.instance-type, alibaba-cloud.availability-zone, alibaba-cloud.vpc-id and alibaba-cloud.cidr-block": alibaba.InstanceType+
			alibaba.AvailabilityZone+alibaba.VPCID+alibaba.CIDRBlock != "",
	} {
		if is {
			errs = append(errs, fmt.Errorf("%s are set from the instance metadata: remove them", what))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	set(&w.MinAllocate, ipam.MinAllocate)
	set(&w.PreAllocate, ipam.PreAllocate)
	set(&w.MaxAllocate, ipam.MaxAllocate)
	set(&w.MaxAboveWatermark, ipam.MaxAboveWatermark)
	setMap(&w.StaticIPTags, ipam.StaticIPTags)
	w.ENI, w.Azure, w.AlibabaCloud = overENI(w.ENI, eni), overAzure(w.Azure, azure), overAlibaba(w.AlibabaCloud, alibaba)
	return nil
}

// Write writes what is wanted, and what machine the node is, into the node's CiliumNode.
func (w *Wanted) Write(o *v2.CiliumNode, cloud Cloud, f Facts) {
	set(&o.Spec.IPAM.MinAllocate, w.MinAllocate)
	set(&o.Spec.IPAM.PreAllocate, w.PreAllocate)
	set(&o.Spec.IPAM.MaxAllocate, w.MaxAllocate)
	set(&o.Spec.IPAM.MaxAboveWatermark, w.MaxAboveWatermark)
	setMap(&o.Spec.IPAM.StaticIPTags, w.StaticIPTags)
	o.Spec.InstanceID = f.ID
	switch cloud {
	case AWS:
		e := overENI(o.Spec.ENI, w.ENI)
		e.InstanceType, e.AvailabilityZone, e.VpcID, e.NodeSubnetID = f.Type, f.Zone, f.VPC, f.Subnet
		o.Spec.ENI = e
	case Azure:
		o.Spec.Azure = overAzure(o.Spec.Azure, w.Azure)
	case Alibaba:
		a := overAlibaba(o.Spec.AlibabaCloud, w.AlibabaCloud)
		a.InstanceType, a.AvailabilityZone, a.VPCID, a.CIDRBlock = f.Type, f.Zone, f.VPC, f.VPCRange
		o.Spec.AlibabaCloud = a
	}
}

func set[T comparable](into *T, value T) {
	var none T
	if value != none {
		*into = value
	}
}

func setList(into *[]string, value []string) {
	if len(value) > 0 {
		*into = slices.Clone(value)
	}
}

func setMap(into *map[string]string, value map[string]string) {
	if len(value) > 0 {
		*into = maps.Clone(value)
	}
}

// overENI is over, with unset fields of base.
func overENI(base, over v2.ENISpec) v2.ENISpec {
	set(&base.FirstInterfaceIndex, over.FirstInterfaceIndex)
	set(&base.UsePrimaryAddress, over.UsePrimaryAddress)
	set(&base.DisablePrefixDelegation, over.DisablePrefixDelegation)
	set(&base.DeleteOnTermination, over.DeleteOnTermination)
	setList(&base.SubnetIDs, over.SubnetIDs)
	setList(&base.SecurityGroups, over.SecurityGroups)
	setMap(&base.SubnetTags, over.SubnetTags)
	setMap(&base.SecurityGroupTags, over.SecurityGroupTags)
	setMap(&base.ExcludeInterfaceTags, over.ExcludeInterfaceTags)
	return base
}

func overAzure(base, over v2.AzureSpec) v2.AzureSpec {
	set(&base.InterfaceName, over.InterfaceName)
	return base
}

func overAlibaba(base, over v2.AlibabaCloudSpec) v2.AlibabaCloudSpec {
	setList(&base.VSwitches, over.VSwitches)
	setList(&base.SecurityGroups, over.SecurityGroups)
	setMap(&base.VSwitchTags, over.VSwitchTags)
	setMap(&base.SecurityGroupTags, over.SecurityGroupTags)
	return base
}
