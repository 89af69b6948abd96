package alibaba

import (
	"net/url"
	"regexp"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/validate"
)

// indexTag is the field's tag for the place of an interface on its instance, which the cloud does
// not report.
const indexTag = "cilium-eni-index"

// Config defines which of Alibaba Cloud is used, and how. Credentials come from where the SDK
// looks: environment, OIDC, files, the RAM role of the instance.
type Config struct {
	// Region is by default that of the instance that the operator runs on.
	Region string
	// VPC bounds what is looked at; "" is all of the region.
	VPC string
	// ReleaseExcess has superfluous addresses be released.
	ReleaseExcess bool
	// Endpoint is where both APIs are, if not where the region has them.
	Endpoint string
	// ClusterName is part of the tags; it is not a flag of this package.
	ClusterName string
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Region, "alibaba-cloud-region-id", c.Region, "with --ipam=alibabacloud, the region; by default that of the instance that the operator runs on")
	fs.StringVar(&c.VPC, "alibaba-cloud-vpc-id", c.VPC, "with --ipam=alibabacloud, the only VPC to look at; by default all of the region")
	fs.BoolVar(&c.ReleaseExcess, "alibaba-cloud-release-excess-ips", c.ReleaseExcess, "with --ipam=alibabacloud, release addresses that nodes have too many of")
	fs.StringVar(&c.Endpoint, "alibaba-cloud-endpoint-url", c.Endpoint, "with --ipam=alibabacloud, the endpoint of ECS and VPC, if it is not that of the region; https only")
}

var regionForm = regexp.MustCompile(`^[a-z0-9-]*$`)

// Validate checks all of it and joins the faults.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(!regionForm.MatchString(c.Region), "--alibaba-cloud-region-id: %q is no region", c.Region)
	if c.Endpoint != "" {
		// An eavesdropper could read what is signed.
		if u, err := url.Parse(c.Endpoint); err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" {
			errs.Add("--alibaba-cloud-endpoint-url: %q is no URL of a host that begins with https://", c.Endpoint)
		}
	}
	return errs.Err()
}

// Collected returns the tags of interfaces that may be deleted if they were left behind.
func (c *Config) Collected() map[string]string { return nodemanager.OwnTags(c.ClusterName) }
