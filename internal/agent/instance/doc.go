// Package instance finds out on which machine of a cloud the agent runs, and writes into the node's
// CiliumNode what the operator must know of it: the machine, and what the node is to have of the
// cloud by the agent's configuration.
//
// [Read] asks the instance metadata service of the cloud. The answer may be forged by an impostor
// or a man in the middle. So its size and time are bounded, it is refused if any field lacks the
// form that the cloud uses, and the machine must have a network interface with the hardware address
// in the metadata. The service is asked once for each boot, so that a restart of the agent does not
// depend on it.
//
// No SDK of a cloud is linked: the requests are a dozen lines for each cloud, and the program that
// runs on every node must be small and hold no credentials. The agent asks for none either: it
// reads nothing below the paths where the service has them.
package instance
