package alibaba

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	sdkerrors "github.com/aliyun/alibaba-cloud-sdk-go/sdk/errors"

	"github.com/hawser-net/hawser/internal/operator/nodemanager"
)

// explain reports what an error means and what a person can do. What is another each time (numbers
// of requests) is left out: the text is kept in objects. The codes are those of the API references
// of ECS and VPC.
func explain(action string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	var known *nodemanager.Error
	if errors.As(err, &known) {
		return err
	}
	out := &nodemanager.Error{Err: err}
	var e *sdkerrors.ServerError
	if !errors.As(err, &e) {
		// The URL of a request has the access key's ID and the signature in it.
		var at *url.Error
		if errors.As(err, &at) {
			out.Err = at.Err
		}
		out.Text = fmt.Sprintf("Alibaba Cloud does not answer %s: check the operator's credentials, its region, and its way to the endpoint; the operator's log has the details", action)
		return out
	}
	out.Code = e.ErrorCode()
	out.Err = fmt.Errorf("%d %s", e.HttpStatus(), out.Code)
	service := "ecs"
	if isVPC(action) {
		service = "vpc"
	}
	switch code := out.Code; {
	case strings.HasPrefix(code, "Forbidden.RAM"), code == "NoPermission", code == "Forbidden.NoPermission", strings.HasPrefix(code, "Forbidden.SubUser"):
		out.Text = fmt.Sprintf("permission %s:%s is missing: grant it to the operator's RAM role", service, action)
	case strings.HasPrefix(code, "InvalidAccessKeyId"), strings.HasPrefix(code, "InvalidSecurityToken"), code == "SignatureDoesNotMatch", code == "IncompleteSignature",
		code == "MissingAccessKeyId", code == "InvalidTimeStamp.Expired":
		out.Text = fmt.Sprintf("Alibaba Cloud does not accept the operator's credentials (%s): give it valid ones", code)
	case strings.HasPrefix(code, "Throttling"):
		out.Kind = nodemanager.Throttled
		out.Text = "Alibaba Cloud is asked more often than the account may: it is asked less often by itself; lower --limit-ipam-api-qps if this stays"
	case code == "InvalidVSwitchId.IpNotEnough", code == "InvalidVSwitchId.IpInvalid":
		out.Kind = nodemanager.Exhausted
		out.Text = "the vSwitch has too few free addresses: add a vSwitch that the node may use"
	case code == "EniPerInstanceLimitExceeded":
		out.Text = "the instance holds no more network interfaces: use a larger type, or detach what others have attached"
	case code == "QuotaExceeded.PrivateIpAddress":
		out.Text = "the network interface holds no more addresses: others have assigned some"
	case strings.HasPrefix(code, "QuotaExceeded"), code == "EniLimitExceeded", code == "MaxEniCountExceeded":
		out.Text = fmt.Sprintf("a quota of the account is used up (%s): have it raised or delete interfaces", code)
	case code == "SecurityGroupInstanceLimitExceed":
		out.Text = "the security group holds no more network interfaces: name another in spec.alibaba-cloud.security-groups or by tags"
	case strings.HasPrefix(code, "InvalidSecurityGroupId"), code == "InvalidVSwitchId.NotFound":
		out.Text = fmt.Sprintf("there is no such vSwitch or security group (%s): correct spec.alibaba-cloud of the node", code)
	case code == "InvalidEcsId.NotFound":
		out.Text = "the instance is gone: delete its Node if it does not go by itself"
	case code == "InvalidOperation.InvalidEniState", code == "IncorrectInstanceStatus", code == "InvalidOperation.InvalidEcsState":
		out.Text = "the network interface or its instance is changing: this is retried automatically"
	default:
		out.Text = fmt.Sprintf("Alibaba Cloud refuses %s: %s", action, code)
	}
	return out
}
