package azure

import (
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines which of Azure is used, and how. Credentials come from where the Azure SDK looks
// (environment, workload identity, managed identity), unless UserAssignedIdentity names one.
type Config struct {
	Subscription  string
	ResourceGroup string
	// UserAssignedIdentity is the client ID of a managed identity of the operator's machine.
	UserAssignedIdentity string
	// UsePrimary has primary addresses of interfaces be given to pods, but the first's.
	UsePrimary bool
	// ReleaseExcess has superfluous addresses be released.
	ReleaseExcess bool
	// Cloud is one of the names of clouds.
	Cloud string
	// ResourceManager is the endpoint of another cloud, as Azure Stack Hub; "" for Cloud's.
	ResourceManager string
}

// Defaults returns the default configuration.
func Defaults() Config { return Config{Cloud: "AzurePublicCloud"} }

// clouds are those of the SDK, by the names that machines report.
func clouds() map[string]cloud.Configuration {
	return map[string]cloud.Configuration{"AzurePublicCloud": cloud.AzurePublic, "AzureUSGovernmentCloud": cloud.AzureGovernment, "AzureChinaCloud": cloud.AzureChina}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Subscription, "azure-subscription-id", c.Subscription, "with --ipam=azure, the subscription of the nodes")
	fs.StringVar(&c.ResourceGroup, "azure-resource-group", c.ResourceGroup, "with --ipam=azure, the resource group of the nodes' machines (of AKS: the node resource group)")
	fs.StringVar(&c.UserAssignedIdentity, "azure-user-assigned-identity-id", c.UserAssignedIdentity, "with --ipam=azure, the client ID of the managed identity to use; by default the SDK looks for credentials")
	fs.BoolVar(&c.UsePrimary, "azure-use-primary-address", c.UsePrimary, "with --ipam=azure, give pods the primary addresses of interfaces, too, but the first's")
	fs.BoolVar(&c.ReleaseExcess, "azure-release-excess-ips", c.ReleaseExcess, "with --ipam=azure, release addresses that nodes have too many of")
	fs.StringVar(&c.Cloud, "azure-cloud-name", c.Cloud, "with --ipam=azure, the cloud: AzurePublicCloud, AzureUSGovernmentCloud or AzureChinaCloud")
	fs.StringVar(&c.ResourceManager, "azure-resource-manager-url", c.ResourceManager, "with --ipam=azure, the endpoint of Azure Resource Manager, if it is not that of --azure-cloud-name; https only")
}

// Validate checks all of it and joins the faults.
func (c *Config) Validate() error {
	var errs validate.Errors
	for _, x := range [][2]string{{"azure-subscription-id", c.Subscription}, {"azure-resource-group", c.ResourceGroup}} {
		errs.If(x[1] == "" || strings.ContainsAny(x[1], "/?#% "), "--%s: %q is not valid; --ipam=azure needs one", x[0], x[1])
	}
	if _, ok := clouds()[c.Cloud]; !ok {
		errs.Add("--azure-cloud-name: %q is not one of AzurePublicCloud, AzureUSGovernmentCloud and AzureChinaCloud", c.Cloud)
	}
	if c.ResourceManager != "" {
		// An eavesdropper could get the rights of the operator.
		if u, err := url.Parse(c.ResourceManager); err != nil || u.Scheme != "https" || u.Host == "" {
			errs.Add("--azure-resource-manager-url: %q is no URL that begins with https://", c.ResourceManager)
		}
	}
	return errs.Err()
}

// cloud returns what the SDK is to know of the cloud.
func (c *Config) cloud() cloud.Configuration {
	out := clouds()[c.Cloud]
	if c.ResourceManager == "" {
		return out
	}
	at := strings.TrimRight(c.ResourceManager, "/")
	out.Services = map[cloud.ServiceName]cloud.ServiceConfiguration{cloud.ResourceManager: {Endpoint: at, Audience: at}}
	return out
}

// group returns the path of the resources of a kind in the resource group.
func (c *Config) group(kind ...string) string {
	return "/subscriptions/" + c.Subscription + "/resourceGroups/" + c.ResourceGroup + "/providers/" + strings.Join(kind, "/")
}
