package aws

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// apiError is what the SDK's errors are that an answer made.
type apiError interface {
	error
	ErrorCode() string
	ErrorMessage() string
}

// codeOf returns AWS's word for an error; "" if there is none.
func codeOf(err error) string {
	if code := nodemanager.CodeOf(err); code != "" {
		return code
	}
	var e apiError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}

// explain describes what an error means and what a person can do. Parts of AWS's own text that
// differ each time (the encoded part of a refusal, the request ID) are left out: the text is stored
// in objects. The codes are those of the Amazon EC2 API Reference, "Error codes for the Amazon EC2
// API".
func explain(operation string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	out := &nodemanager.Error{Err: err}
	var e apiError
	if !errors.As(err, &e) {
		out.Text = fmt.Sprintf("AWS does not answer %s: check the operator's credentials, its region, and its way to the EC2 endpoint; the operator's log has the details", operation)
		return out
	}
	out.Code = e.ErrorCode()
	switch out.Code {
	case "UnauthorizedOperation", "AccessDenied", "AccessDeniedException":
		out.Text = fmt.Sprintf("permission ec2:%s is missing: grant it to the operator's role", operation)
	case "AuthFailure", "InvalidClientTokenId", "MissingAuthenticationToken", "SignatureDoesNotMatch", "ExpiredToken", "RequestExpired", "OptInRequired":
		out.Text = fmt.Sprintf("AWS does not accept the operator's credentials (%s): give it valid ones", out.Code)
	case "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequestsException", "EC2ThrottledException":
		out.Kind = nodemanager.Throttled
		out.Text = "AWS is asked more often than the account may: it is asked less often by itself; lower --limit-ipam-api-qps if this stays"
	case "InsufficientFreeAddressesInSubnet", "InsufficientFreeAddresses":
		out.Kind = nodemanager.Exhausted
		out.Text = "the subnet has too few free addresses: add a subnet that the node may use"
	case "InsufficientCidrBlocks":
		out.Kind = nodemanager.Scattered
		out.Text = "the subnet has no 16 free addresses in a row for a prefix"
		if operation == "AssignIpv6Addresses" {
			out.Text = fmt.Sprintf("the IPv6 CIDR block of the subnet has no /%d left for a prefix: others have all", ipv6Bits)
		}
	case "NetworkInterfaceLimitExceeded":
		out.Text = "the account's quota of network interfaces in this region is used up: have it raised (Service Quotas, Network interfaces per Region) or delete interfaces"
	case "AttachmentLimitExceeded":
		out.Text = "the instance holds no more network interfaces: use a larger type, or detach what others have attached"
	case "PrivateIpAddressLimitExceeded":
		out.Text = "the network interface holds no more addresses: others have assigned some"
	case "Resource.AlreadyAssociated", "InvalidAllocationID.NotFound":
		out.Kind = nodemanager.Taken
		out.Text = "the elastic IP was associated elsewhere since it was looked up: another one is tried automatically"
	case "AddressLimitExceeded":
		out.Text = "the account's quota of elastic IPs in this region is used up: have it raised (Service Quotas, EC2-VPC Elastic IPs) or release some"
	case "Gateway.NotAttached":
		out.Text = "the node's VPC has no internet gateway, without which it cannot have an elastic IP: attach one, or remove spec.ipam.static-ip-tags"
	case "SecurityGroupsPerInterfaceLimitExceeded":
		out.Text = "there are more security groups than an interface may have: name fewer in spec.eni.security-groups or by tags"
	case "InvalidGroup.NotFound", "InvalidSecurityGroupID.NotFound", "InvalidSubnetID.NotFound":
		out.Text = fmt.Sprintf("%s (%s): correct spec.eni of the node or the operator's filters", e.ErrorMessage(), out.Code)
	case "InvalidInstanceID.NotFound":
		out.Text = "the instance is gone: delete its Node if it does not go by itself"
	default:
		out.Text = fmt.Sprintf("AWS refuses %s: %s: %s", operation, out.Code, e.ErrorMessage())
	}
	return out
}
