package agent

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/validate"
)

// Values of --identity-allocation-mode.
const (
	identityCRD     = "crd"
	identityKVStore = "kvstore"
	// In both places; read from one.
	identityBothKVStore = "doublewrite-readkvstore"
	identityBothCRD     = "doublewrite-readcrd"
)

// IdentityOptions configure which labels make identities, who makes these, and where they are kept.
type IdentityOptions struct {
	// IdentityMode is where identities are kept: crd, kvstore, or empty for the first without a
	// key-value store.
	IdentityMode string
	// WellKnown gives certain system pods identities that every cluster has.
	WellKnown bool
	// ManagementMode and ManageCID together select who makes identities; see management.
	ManagementMode, ManageCID string
	// IdentityLabels decides which labels make identities: a value of relevance.Flag. See
	// narrowLabels.
	IdentityLabels    string
	Labels            []string
	LabelPrefixFile   string
	FixedIdentities   map[string]string
	AllocationTimeout time.Duration
	AllocationSync    time.Duration
}

func identityDefaults() IdentityOptions {
	return IdentityOptions{
		IdentityLabels: relevance.AllLabels, FixedIdentities: map[string]string{}, WellKnown: true, AllocationTimeout: 2 * time.Minute, AllocationSync: 5 * time.Minute,
	}
}

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *IdentityOptions) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.IdentityMode, "identity-allocation-mode", o.IdentityMode, "where identities are kept: crd or kvstore, "+
		"or in both: doublewrite-readkvstore or doublewrite-readcrd, which read from the named one; by default kvstore if there is one, else crd")
	fs.BoolVar(&o.WellKnown, identity.WellKnownFlag, o.WellKnown, "give certain system pods, such as CoreDNS, identities with fixed IDs; not for connected clusters")
	fs.StringVar(&o.ManagementMode, identity.ManagementFlag, o.ManagementMode,
		"who makes identities: agent (the default), operator or both; with operator a pod whose identity is not known yet starts with a temporary one")
	fs.StringVar(&o.ManageCID, identity.ManageCIDFlag, o.ManageCID, "true is the same as --identity-management-mode=operator, false the same as agent")
	fs.Lookup(identity.ManageCIDFlag).NoOptDefVal = "true"
	fs.StringVar(&o.IdentityLabels, relevance.Flag, o.IdentityLabels,
		"which of the labels that --labels leaves make identities: all, or policy (those that some policy selects); set the same for the operator")
	fs.StringSliceVar(&o.Labels, "labels", o.Labels, "label prefixes that make or (with !) do not make an identity, added to the default list")
	fs.StringVar(&o.LabelPrefixFile, "label-prefix-file", o.LabelPrefixFile, "JSON file of label prefixes that replaces the default list")
	fs.StringToStringVar(&o.FixedIdentities, "fixed-identity-mapping", o.FixedIdentities, "identities 128 to 255 by name, such as 128=kv-store")
	fs.DurationVar(&o.AllocationTimeout, "identity-allocation-timeout", o.AllocationTimeout, "how long to try to get an identity")
	fs.DurationVar(&o.AllocationSync, "identity-allocation-sync-interval", o.AllocationSync, "how often this node's identity keys are repaired")
}

// Validate checks every option and joins all faults in one error. Where identities can be kept
// depends on more: see Config.validateIdentities.
func (o *IdentityOptions) Validate() error {
	var errs validate.Errors
	errs.AtLeastSecond("identity-allocation-timeout", o.AllocationTimeout)
	errs.AtLeastSecond("identity-allocation-sync-interval", o.AllocationSync)
	_, err := identity.ParseManagement(o.ManagementMode, o.ManageCID)
	return errors.Join(append(errs, err)...)
}

// management is who makes identities, of a configuration that is valid.
func (o *IdentityOptions) management() identity.Management {
	m, err := identity.ParseManagement(o.ManagementMode, o.ManageCID)
	if err != nil {
		return identity.ManagedByAgent
	}
	return m
}

// narrowLabels reports whether only labels make identities that policies select, of a configuration
// that is valid.
func (o *IdentityOptions) narrowLabels() bool { return o.IdentityLabels == relevance.PolicyLabels }

// identityMode is where identities are kept.
func (c *Config) identityMode() string {
	switch {
	case c.IdentityMode != "":
		return c.IdentityMode
	case c.EnableK8s && c.KVStore == "":
		return identityCRD
	}
	return identityKVStore
}

// inBothPlaces reports whether identities are kept as objects and in the key-value store.
func (c *Config) inBothPlaces() bool {
	return c.identityMode() == identityBothKVStore || c.identityMode() == identityBothCRD
}

// validateIdentities checks that identities can be kept and made as configured.
func (c *Config) validateIdentities() error {
	var errs validate.Errors
	mode := c.identityMode()
	m, err := identity.ParseManagement(c.ManagementMode, c.ManageCID)
	if c.EnableK8s {
		errs.OneOf("identity-allocation-mode", mode, identityCRD, identityKVStore, identityBothKVStore, identityBothCRD)
		errs.If(mode != identityCRD && c.KVStore == "", "--identity-allocation-mode: %s needs --kvstore", mode)
		errs.If(c.inBothPlaces() && err == nil && m != identity.ManagedByAgent,
			"--identity-allocation-mode: with %s agents make identities; --%s must be %s", mode, identity.ManagementFlag, identity.ManagedByAgent)
		errs.If(c.NoEndpointObjects && !c.EndpointSlices && mode != identityKVStore,
			"--disable-endpoint-crd: without --enable-cilium-endpoint-slice no node would observe another's pods")
	} else if mode != identityKVStore {
		errs.Add("--identity-allocation-mode: %s needs --enable-k8s", c.IdentityMode)
	}
	errs.If(err == nil && m.Operator() && !c.EnableK8s && c.KVStore == "",
		"--%s: %s needs --enable-k8s or --kvstore: a node on its own has no operator", identity.ManagementFlag, m)
	return errors.Join(append(errs, c.validateLabels())...)
}

// validateLabels checks what must be so if identities are made by some labels only.
func (c *Config) validateLabels() error {
	if narrow, err := relevance.ParseFlag(c.IdentityLabels); err != nil || !narrow {
		return err
	}
	const option = "--" + relevance.Flag + "=" + relevance.PolicyLabels
	var errs validate.Errors
	errs.If(c.identityMode() != identityCRD || c.KVStore != "",
		option+" needs --identity-allocation-mode=%s and no --kvstore: agents that read identities from a key-value store cannot see which labels make them", identityCRD)
	errs.If(!c.management().Operator(), option+" needs --%s=%s or %s: one program must decide which labels count", identity.ManagementFlag, identity.ManagedByOperator, identity.ManagedByBoth)
	errs.If(c.NoEndpointObjects, option+" needs CiliumEndpoints, by which agents publish the identities of pods (no --disable-endpoint-crd)")
	errs.If(c.StaticCNPPath != "", option+" cannot be used with --static-cnp-path: the operator does not know which labels the rules of files select")
	errs.If(c.ClusterMesh.Dir != "", option+" cannot be used with --clustermesh-config: the identities of other clusters are made by other labels")
	return errs.Err()
}
