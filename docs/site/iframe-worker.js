// Search runs in a Worker, which browsers refuse to pages that are opened from a folder (file://).
// There, this Worker runs its script in a hidden frame instead. Zensical would load such a script
// from another site. Messages are copied and come later, as with a real Worker: either side may
// change what it has sent or received.
if (location.protocol === "file:") {
  window.Worker = class {
    #waiting = [];
    #ready = false;

    constructor(url) {
      this.onmessage = this.onerror = this.onmessageerror = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const scope = this.frame.contentWindow;
      scope.postMessage = (data) => {
        const copy = structuredClone(data);
        setTimeout(() => this.onmessage?.({ data: copy }));
      };
      const script = scope.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.#ready = true;
        this.#waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = () => this.onerror?.(new Event("error", { cancelable: true }));
      scope.document.body.append(script);
    }

    postMessage(data) {
      const copy = structuredClone(data);
      if (this.#ready) setTimeout(() => this.frame.contentWindow?.onmessage?.({ data: copy }));
      else this.#waiting.push(copy);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
