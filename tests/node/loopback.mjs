// Loaded before a server that would listen on every interface: it listens on this machine alone, and says on which port.
import { Server } from "node:net";

const listen = Server.prototype.listen;
Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => console.error(`at port ${this.address().port}`));
  return listen.call(this, Number(port), "127.0.0.1", ...rest);
};
